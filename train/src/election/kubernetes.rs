//! Elections in Kubernetes: a Lease object whose `leaseTransitions` is the term.

use super::LeaderStore;
use super::calls::{CALL_TIMEOUT, StoreCalls};
use crate::error::Result;
use graph::Code;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Config};
use parking_lot::Mutex;
use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

/// The Kubernetes client crate, re-exported because its [`Config`] names the server.
pub use kube;

/// The number of times that a leader tries to update its Lease, because another client may change the object (annotate
/// it, for instance) between the leader's read and write.
const TRIES: usize = 3;

/// A [`LeaderStore`] in Kubernetes: a `Lease` of `coordination.k8s.io/v1` in the pod's namespace, used in the same way
/// as by Kubernetes controllers.
///
/// A leader is replaced if its Lease has not changed for the lease's duration on the clock of the observing candidate;
/// clocks of different machines are not compared. All candidates need a role that may `get`, `create` and `update` the
/// object. Terms continue from the object's `leaseTransitions`. After the object has been deleted, terms start at 1
/// again, and a worker that has received a higher term refuses the new leader's requests until the worker is restarted.
pub struct KubernetesStore {
    api: Api<Lease>,
    calls: StoreCalls,
    name: String,
    lease: Duration,
    /// The unique identity of this candidate.
    own: String,
    observed: Mutex<Option<ObservedVersion>>,
}

/// The last observed version of another candidate's Lease, and the time when it was first observed.
#[derive(Debug)]
struct ObservedVersion {
    version: Option<String>,
    at: Instant,
}

impl KubernetesStore {
    /// Opens the election by the Lease `name`. Server and namespace are those of `config`; if `config` is `None`, those
    /// of the user's kubeconfig, or else of the pod's environment. The Lease's duration is counted in whole seconds.
    ///
    /// # Errors
    /// `FailedPrecondition` if no configuration names a server, or if the configuration is not usable.
    pub fn new(config: Option<Config>, name: &str, lease: Duration) -> Result<KubernetesStore> {
        let mut calls = StoreCalls::new(format!("Lease {name} in Kubernetes"), lease)?;
        let config = match config {
            Some(config) => config,
            None => {
                let inferred = calls.wait(CALL_TIMEOUT, Config::infer())?;
                inferred.map_err(|e| calls.call_error(Code::FailedPrecondition, e))?
            }
        };
        let namespace = config.default_namespace.clone();
        calls.set_description(format!("Lease {namespace}/{name} in Kubernetes at {}", config.cluster_url));
        // The Kubernetes client starts an asynchronous task when it is created, so it is created on the runtime.
        let client = calls.wait(CALL_TIMEOUT, async move { Client::try_from(config) })?;
        let client = client.map_err(|e| calls.call_error(Code::FailedPrecondition, e))?;
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "process".to_owned());
        let own = format!("{host}_{}_{:016x}", std::process::id(), rand::random::<u64>());
        let api = Api::namespaced(client, &namespace);
        Ok(KubernetesStore { api, calls, name: name.to_owned(), lease, own, observed: Mutex::default() })
    }

    /// Runs a call that receives the Kubernetes API and the Lease's name, for at most `time_limit`.
    fn call<T: Send + 'static, F>(
        &self,
        time_limit: Duration,
        call: impl FnOnce(Api<Lease>, String) -> F,
    ) -> Result<T>
    where
        F: Future<Output = kube::Result<T>> + Send + 'static,
    {
        let answer = self.calls.wait(time_limit, call(self.api.clone(), self.name.clone()))?;
        answer.map_err(|e| self.calls.call_error(code(&e), e))
    }

    /// Reads the Lease. Returns `None` if it does not exist.
    fn find(&self, time_limit: Duration) -> Result<Option<Lease>> {
        self.call(time_limit, |api, name| async move { api.get_opt(&name).await })
    }

    /// Creates the Lease, or replaces the stored Lease if its version is the one in `lease`. Returns whether it was
    /// written.
    fn write(&self, time_limit: Duration, lease: Lease) -> Result<bool> {
        self.call(time_limit, |api, name| async move {
            let is_new = lease.metadata.resource_version.is_none();
            let written = match is_new {
                true => api.create(&PostParams::default(), &lease).await,
                false => api.replace(&name, &PostParams::default(), &lease).await,
            };
            match written {
                Ok(_) => Ok(true),
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
                // The Lease that was to be replaced has been deleted. For a create, 404 means that the namespace does
                // not exist.
                Err(kube::Error::Api(status)) if status.code == 404 && !is_new => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    /// Returns whether no other candidate holds this Lease, or the holder has not renewed it for the duration of the
    /// lease.
    fn is_free(&self, found: &Lease) -> bool {
        let mut observed = self.observed.lock();
        let is_held_by_other = holder(found).is_some_and(|holder| *holder != self.own);
        let version = &found.metadata.resource_version;
        match &*observed {
            _ if !is_held_by_other => true,
            Some(observed) if observed.version == *version => {
                observed.at.elapsed() >= self.lease.max(duration(found))
            }
            _ => {
                *observed = Some(ObservedVersion { version: version.clone(), at: Instant::now() });
                false
            }
        }
    }

    /// Returns whether this candidate holds the Lease in this term.
    fn is_own(&self, found: &Lease, term: i64) -> bool {
        holder(found) == Some(&self.own) && self::term(found) == term
    }

    /// Updates the Lease by `change` if this candidate still holds the Lease in this term. Returns whether it still
    /// does.
    fn change(&self, term: i64, change: impl Fn(&mut LeaseSpec)) -> Result<bool> {
        let end = Instant::now() + self.calls.renewal_timeout();
        let time_limit = || end.saturating_duration_since(Instant::now());
        for _ in 0..TRIES {
            let Some(mut found) = self.find(time_limit())?.filter(|found| self.is_own(found, term)) else {
                return Ok(false);
            };
            change(found.spec.get_or_insert_default());
            if self.write(time_limit(), found)? {
                return Ok(true);
            }
        }
        Err(self.calls.call_error(Code::Unavailable, "others keep changing it"))
    }
}

impl LeaderStore for KubernetesStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    fn campaign(&self) -> Result<Option<i64>> {
        let mut lease = match self.find(CALL_TIMEOUT)? {
            Some(found) if self.is_free(&found) => found,
            Some(_) => return Ok(None),
            None => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                Lease { metadata, spec: None }
            }
        };
        let term = i32::try_from(term(&lease) + 1)
            .map_err(|_| self.calls.call_error(Code::OutOfRange, "its count of terms is exhausted"))?;
        let now = MicroTime(Timestamp::now());
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.own.clone());
        spec.lease_duration_seconds = Some(whole_seconds(self.lease));
        spec.lease_transitions = Some(term);
        spec.acquire_time = Some(now.clone());
        spec.renew_time = Some(now);
        Ok(self.write(CALL_TIMEOUT, lease)?.then_some(term.into()))
    }

    fn keep(&self, term: i64) -> Result<bool> {
        self.change(term, |spec| spec.renew_time = Some(MicroTime(Timestamp::now())))
    }

    fn resign(&self, term: i64) -> Result<()> {
        self.change(term, |spec| spec.holder_identity = None).map(drop)
    }
}

/// Returns the holder of a Lease. A released Lease has an empty holder, or none.
fn holder(lease: &Lease) -> Option<&String> {
    lease.spec.as_ref()?.holder_identity.as_ref().filter(|holder| !holder.is_empty())
}

/// Returns the term that a Lease records as its number of transitions; 0 if it records none.
fn term(lease: &Lease) -> i64 {
    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0).into()
}

/// Returns the duration that a Lease records; 0 if it records none.
fn duration(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
    Duration::from_secs(seconds.try_into().unwrap_or(0))
}

/// Returns a duration in seconds, rounded up, at least 1.
fn whole_seconds(lease: Duration) -> i32 {
    i32::try_from(lease.as_millis().div_ceil(1000)).unwrap_or(i32::MAX).max(1)
}

/// Returns the status code of a failed request. The code is not `Unavailable` for a request that the server refuses,
/// because a retry would not help.
fn code(error: &kube::Error) -> Code {
    match error {
        kube::Error::Api(status) => match status.code {
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            400 | 422 => Code::InvalidArgument,
            404 => Code::NotFound,
            _ => Code::Unavailable,
        },
        _ => Code::Unavailable,
    }
}

impl fmt::Debug for KubernetesStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KubernetesStore({} as {})", self.calls.description(), self.own)
    }
}
