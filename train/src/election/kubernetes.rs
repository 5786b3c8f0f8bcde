//! Elections in Kubernetes: a Lease object, whose transitions are the terms.

use super::LeaderStore;
use super::calls::{Calls, LONGEST};
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

/// Its [`Config`] says where the server is.
pub use kube;

/// Who is not the leader changes a Lease too, with a note for instance: so often a leader tries again.
const TRIES: usize = 3;

/// A [`LeaderStore`] in Kubernetes: a `Lease` of `coordination.k8s.io/v1` in the pod's namespace, as other controllers
/// use them.
///
/// A leader whose Lease has not changed for its duration, on the clock of whoever watches it, is replaced: no two
/// clocks are compared. All who stand need a role that may `get`, `create` and `update` the object. The terms go on from
/// what it holds: once it has been deleted they begin anew, and workers that have seen higher ones refuse until they are
/// restarted.
pub struct KubernetesStore {
    api: Api<Lease>,
    calls: Calls,
    name: String,
    lease: Duration,
    /// Who stands: no other store has this name.
    own: String,
    seen: Mutex<Option<Seen>>,
}

/// What another's Lease was when it was seen to change.
#[derive(Debug)]
struct Seen {
    version: Option<String>,
    at: Instant,
}

impl KubernetesStore {
    /// Elections by the Lease `name`, at the server and in the namespace that `config` says; `None` is what
    /// the user's kubeconfig says, or else the pod's own. The Lease's duration is counted in whole seconds.
    ///
    /// # Errors
    /// `FailedPrecondition` where nothing says which server that is, or how to ask it.
    pub fn new(config: Option<Config>, name: &str, lease: Duration) -> Result<KubernetesStore> {
        let mut calls = Calls::new(format!("Lease {name} in Kubernetes"), lease)?;
        let config = match config {
            Some(config) => config,
            None => {
                let inferred = calls.wait(LONGEST, Config::infer())?;
                inferred.map_err(|e| calls.failed(Code::FailedPrecondition, e))?
            }
        };
        let namespace = config.default_namespace.clone();
        calls.are_to(format!("Lease {namespace}/{name} in Kubernetes at {}", config.cluster_url));
        // Within the runtime, where it starts a task.
        let client = calls.wait(LONGEST, async move { Client::try_from(config) })?;
        let client = client.map_err(|e| calls.failed(Code::FailedPrecondition, e))?;
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "process".to_owned());
        let own = format!("{host}_{}_{:016x}", std::process::id(), rand::random::<u64>());
        let api = Api::namespaced(client, &namespace);
        Ok(KubernetesStore { api, calls, name: name.to_owned(), lease, own, seen: Mutex::default() })
    }

    fn call<T: Send + 'static, F>(
        &self,
        patience: Duration,
        call: impl FnOnce(Api<Lease>, String) -> F,
    ) -> Result<T>
    where
        F: Future<Output = kube::Result<T>> + Send + 'static,
    {
        let answer = self.calls.wait(patience, call(self.api.clone(), self.name.clone()))?;
        answer.map_err(|e| self.calls.failed(code(&e), e))
    }

    fn find(&self, patience: Duration) -> Result<Option<Lease>> {
        self.call(patience, |api, name| async move { api.get_opt(&name).await })
    }

    /// Makes the Lease, or writes it over what it was; false if it is no longer that.
    fn write(&self, patience: Duration, lease: Lease) -> Result<bool> {
        self.call(patience, |api, name| async move {
            let is_new = lease.metadata.resource_version.is_none();
            let written = match is_new {
                true => api.create(&PostParams::default(), &lease).await,
                false => api.replace(&name, &PostParams::default(), &lease).await,
            };
            match written {
                Ok(_) => Ok(true),
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
                // Somebody has deleted it. Where one is made, it is the namespace that is not there.
                Err(kube::Error::Api(status)) if status.code == 404 && !is_new => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    /// Whether nobody else leads by this Lease, or he was not heard of for too long.
    fn is_free(&self, found: &Lease) -> bool {
        let mut seen = self.seen.lock();
        let is_anothers = holder(found).is_some_and(|holder| *holder != self.own);
        let version = &found.metadata.resource_version;
        match &*seen {
            _ if !is_anothers => true,
            Some(seen) if seen.version == *version => seen.at.elapsed() >= self.lease.max(duration(found)),
            _ => {
                *seen = Some(Seen { version: version.clone(), at: Instant::now() });
                false
            }
        }
    }

    fn is_own(&self, found: &Lease, term: i64) -> bool {
        holder(found) == Some(&self.own) && self::term(found) == term
    }

    /// Changes the Lease if it is still of this term; whether it was.
    fn change(&self, term: i64, change: impl Fn(&mut LeaseSpec)) -> Result<bool> {
        let end = Instant::now() + self.calls.in_turn();
        let patience = || end.saturating_duration_since(Instant::now());
        for _ in 0..TRIES {
            let Some(mut found) = self.find(patience())?.filter(|found| self.is_own(found, term)) else {
                return Ok(false);
            };
            change(found.spec.get_or_insert_default());
            if self.write(patience(), found)? {
                return Ok(true);
            }
        }
        Err(self.calls.failed(Code::Unavailable, "others keep changing it"))
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
        let mut lease = match self.find(LONGEST)? {
            Some(found) if self.is_free(&found) => found,
            Some(_) => return Ok(None),
            None => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                Lease { metadata, spec: None }
            }
        };
        let term = i32::try_from(term(&lease) + 1)
            .map_err(|_| self.calls.failed(Code::OutOfRange, "it has had all terms that it can count"))?;
        let now = MicroTime(Timestamp::now());
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.own.clone());
        spec.lease_duration_seconds = Some(whole_seconds(self.lease));
        spec.lease_transitions = Some(term);
        spec.acquire_time = Some(now.clone());
        spec.renew_time = Some(now);
        Ok(self.write(LONGEST, lease)?.then_some(term.into()))
    }

    fn keep(&self, term: i64) -> Result<bool> {
        self.change(term, |spec| spec.renew_time = Some(MicroTime(Timestamp::now())))
    }

    fn resign(&self, term: i64) -> Result<()> {
        self.change(term, |spec| spec.holder_identity = None).map(drop)
    }
}

/// Who leads by a Lease. One that was let go has an empty name, or none.
fn holder(lease: &Lease) -> Option<&String> {
    lease.spec.as_ref()?.holder_identity.as_ref().filter(|holder| !holder.is_empty())
}

fn term(lease: &Lease) -> i64 {
    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0).into()
}

fn duration(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
    Duration::from_secs(seconds.try_into().unwrap_or(0))
}

fn whole_seconds(lease: Duration) -> i32 {
    i32::try_from(lease.as_millis().div_ceil(1000)).unwrap_or(i32::MAX).max(1)
}

/// What a failure is: a server that refuses is not mended by asking again.
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
        write!(f, "KubernetesStore({} as {})", self.calls.place(), self.own)
    }
}
