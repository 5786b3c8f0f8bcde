//! Elections in Kubernetes, against a test server that implements Leases as the Kubernetes API describes them.

use crate::support::Fallible;
use crate::support::cluster::free_port;
use crate::support::elections::{self, SHORT};
use anabranch::graph::Code;
use anabranch::train::{KubernetesStore, LeaderStore, kube};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/team/leases";

/// A test server that holds at most one Lease.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    state: Arc<Mutex<ServerState>>,
}

/// The Lease that the test server holds, and the failures that it injects.
#[derive(Default)]
struct ServerState {
    lease: Option<Value>,
    version: u64,
    /// Number of updates, from the next one on, that the server answers with a conflict.
    conflicts: usize,
    /// The HTTP status and reason that answer every request, if set.
    refusal: Option<(u16, &'static str)>,
}

impl Server {
    fn start() -> Fallible<Server> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let server = Server { address: listener.local_addr()?, state: Arc::default() };
        let acceptor = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let server = acceptor.clone();
                // The thread ends when the client closes its connection.
                thread::spawn(move || drop(server.serve(stream)));
            }
        });
        Ok(server)
    }

    fn store(&self, lease: Duration) -> Fallible<KubernetesStore> {
        Ok(KubernetesStore::new(Some(config(self.address)?), "job", lease)?)
    }

    fn serve(&self, stream: TcpStream) -> Fallible {
        let (mut reader, mut writer) = (BufReader::new(stream.try_clone()?), stream);
        loop {
            let mut first = String::new();
            if reader.read_line(&mut first)? == 0 {
                return Ok(());
            }
            let mut length = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                match line.trim().to_lowercase().split_once(": ") {
                    Some(("content-length", number)) => length = number.parse()?,
                    Some(_) => {}
                    None => break,
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let mut words = first.split_whitespace();
            let (method, path) = words.next().zip(words.next()).ok_or("no request")?;
            let path = path.split('?').next().unwrap_or(path).to_owned();
            let (code, answer) =
                self.answer(method, &path, serde_json::from_slice(&body).unwrap_or_default());
            let answer = answer.to_string();
            let head = format!("HTTP/1.1 {code} -\r\ncontent-type: application/json\r\ncontent-length: ");
            writer.write_all(format!("{head}{}\r\n\r\n{answer}", answer.len()).as_bytes())?;
        }
    }

    fn answer(&self, method: &str, path: &str, object: Value) -> (u16, Value) {
        let Ok(mut state) = self.state.lock() else { return failure(500, "InternalError") };
        if let Some((code, reason)) = state.refusal {
            return failure(code, reason);
        }
        let is_the_lease = path == format!("{LEASES}/job");
        match method {
            "GET" if is_the_lease => {
                state.lease.clone().map_or(failure(404, "NotFound"), |lease| (200, lease))
            }
            "POST" if path == LEASES && state.lease.is_some() => failure(409, "AlreadyExists"),
            "POST" if path == LEASES => (201, state.store(object)),
            "PUT" if is_the_lease => {
                let version = |of: &Value| of["metadata"]["resourceVersion"].clone();
                if state.conflicts > 0 {
                    state.conflicts -= 1;
                    return failure(409, "Conflict");
                }
                match &state.lease {
                    Some(lease) if version(lease) == version(&object) => (200, state.store(object)),
                    _ => failure(409, "Conflict"),
                }
            }
            _ => failure(404, "NotFound"),
        }
    }
}

impl ServerState {
    /// Stores a Lease with a new `resourceVersion` and returns the stored object.
    fn store(&mut self, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object["metadata"]["namespace"] = json!("team");
        self.lease = Some(object.clone());
        object
    }
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    let message = format!("leases.coordination.k8s.io \"job\": {reason}");
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    (code, status)
}

fn config(address: SocketAddr) -> Fallible<kube::Config> {
    let mut config = kube::Config::new(format!("http://{address}").parse()?);
    config.default_namespace = "team".to_owned();
    Ok(config)
}

#[test]
fn each_leader_has_a_higher_term() -> Fallible {
    let server = Server::start()?;
    elections::each_leader_has_a_higher_term(&server.store(LONG)?, &server.store(LONG)?)?;
    let state = server.state.lock().map_err(|e| e.to_string())?;
    let spec = &state.lease.as_ref().ok_or("no lease")?["spec"];
    assert_eq!((&spec["leaseTransitions"], &spec["leaseDurationSeconds"]), (&json!(3), &json!(60)));
    for time in ["acquireTime", "renewTime"] {
        assert!(spec[time].as_str().is_some_and(|t| t.starts_with("20") && t.ends_with('Z')), "{spec}");
    }
    Ok(())
}

#[test]
fn leader_that_stops_renewing_is_replaced() -> Fallible {
    let server = Server::start()?;
    elections::leader_that_stops_renewing_is_replaced(&server.store(SHORT)?, &server.store(SHORT)?)
}

#[test]
fn one_of_several_simultaneous_candidates_leads() -> Fallible {
    let server = Server::start()?;
    let stores = (0..8).map(|_| server.store(LONG)).collect::<Fallible<Vec<_>>>()?;
    let mut last = 0;
    for _ in 0..5 {
        let terms: Vec<_> = thread::scope(|scope| {
            let campaign =
                |store| scope.spawn(move || KubernetesStore::campaign(store).map_err(|e| e.to_string()));
            let campaigns: Vec<_> = stores.iter().map(campaign).collect();
            campaigns
                .into_iter()
                .map(|c| c.join().unwrap_or(Err("a candidate panicked".to_owned())))
                .collect()
        });
        let terms = terms.into_iter().collect::<Result<Vec<Option<i64>>, String>>()?;
        let leaders: Vec<usize> = (0..terms.len()).filter(|&i| terms[i].is_some()).collect();
        let [leader] = leaders[..] else { return Err(format!("not exactly one leader: {terms:?}").into()) };
        let term = terms[leader].unwrap_or(0);
        assert!(term > last, "{term} after {last}");
        last = term;
        stores[leader].resign(term)?;
    }
    Ok(())
}

#[test]
fn lease_is_renewed_after_conflicting_updates() -> Fallible {
    let server = Server::start()?;
    let store = server.store(LONG)?;
    let term = store.campaign()?.ok_or("a campaign without another leader was refused")?;
    let conflicts =
        |count| server.state.lock().map(|mut state| state.conflicts = count).map_err(|e| e.to_string());
    conflicts(2)?;
    assert!(store.keep(term)?);
    conflicts(100)?;
    let failed = store.keep(term).err().ok_or("the lease was renewed")?;
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    conflicts(0)?;
    assert!(store.keep(term)?);
    Ok(())
}

#[test]
fn refused_and_unreachable_servers_are_errors() -> Fallible {
    let server = Server::start()?;
    let store = server.store(SHORT)?;
    // "NotFound" stands for a missing namespace, in which no Lease can be created.
    for (refusal, code) in [((403, "Forbidden"), Code::PermissionDenied), ((404, "NotFound"), Code::NotFound)]
    {
        server.state.lock().map_err(|e| e.to_string())?.refusal = Some(refusal);
        let failed = store.campaign().err().ok_or("the campaign succeeded")?;
        assert!(failed.code() == code && failed.to_string().contains("Lease team/job"), "{failed}");
    }

    let unused = free_port()?;
    let store = KubernetesStore::new(Some(config(unused)?), "job", SHORT)?;
    let failed = store.campaign().err().ok_or("a campaign without a server succeeded")?;
    assert!(
        failed.code() == Code::Unavailable && failed.to_string().contains(&unused.to_string()),
        "{failed}"
    );
    Ok(())
}
