//! Elections in Kubernetes, by a server that keeps Leases as its API describes them.

mod support;

use anabranch::graph::Code;
use anabranch::train::{KubernetesStore, LeaderStore, kube};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use support::Fallible;
use support::cluster::free_port;
use support::elections::{self, SHORT};

const LONG: Duration = Duration::from_secs(60);
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/team/leases";

/// A server that has one Lease, or none yet.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    lease: Option<Value>,
    version: u64,
    /// How many more updates find that somebody else was faster.
    conflicts: usize,
    /// What it answers to everything.
    refuses: Option<(u16, &'static str)>,
}

impl Server {
    fn start() -> Fallible<Server> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let server = Server { address: listener.local_addr()?, state: Arc::default() };
        let of_threads = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let server = of_threads.clone();
                // Ends with the client.
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
        if let Some((code, reason)) = state.refuses {
            return failure(code, reason);
        }
        let is_the_lease = path == format!("{LEASES}/job");
        match method {
            "GET" if is_the_lease => {
                state.lease.clone().map_or(failure(404, "NotFound"), |lease| (200, lease))
            }
            "POST" if path == LEASES && state.lease.is_some() => failure(409, "AlreadyExists"),
            "POST" if path == LEASES => (201, state.keep(object)),
            "PUT" if is_the_lease => {
                let version = |of: &Value| of["metadata"]["resourceVersion"].clone();
                if state.conflicts > 0 {
                    state.conflicts -= 1;
                    return failure(409, "Conflict");
                }
                match &state.lease {
                    Some(lease) if version(lease) == version(&object) => (200, state.keep(object)),
                    _ => failure(409, "Conflict"),
                }
            }
            _ => failure(404, "NotFound"),
        }
    }
}

impl State {
    fn keep(&mut self, mut object: Value) -> Value {
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
fn one_leads_and_is_followed_under_a_higher_term() -> Fallible {
    let server = Server::start()?;
    elections::one_leads_and_is_followed_under_a_higher_term(&server.store(LONG)?, &server.store(LONG)?)?;
    let state = server.state.lock().map_err(|e| e.to_string())?;
    let spec = &state.lease.as_ref().ok_or("no lease")?["spec"];
    assert_eq!((&spec["leaseTransitions"], &spec["leaseDurationSeconds"]), (&json!(3), &json!(60)));
    for time in ["acquireTime", "renewTime"] {
        assert!(spec[time].as_str().is_some_and(|t| t.starts_with("20") && t.ends_with('Z')), "{spec}");
    }
    Ok(())
}

#[test]
fn who_is_silent_for_a_lease_is_replaced() -> Fallible {
    let server = Server::start()?;
    elections::who_is_silent_for_a_lease_is_replaced(&server.store(SHORT)?, &server.store(SHORT)?)
}

#[test]
fn of_all_who_stand_at_once_one_leads() -> Fallible {
    let server = Server::start()?;
    let stores = (0..8).map(|_| server.store(LONG)).collect::<Fallible<Vec<_>>>()?;
    let mut last = 0;
    for _ in 0..5 {
        let terms: Vec<_> = thread::scope(|scope| {
            let stand =
                |store| scope.spawn(move || KubernetesStore::campaign(store).map_err(|e| e.to_string()));
            let standing: Vec<_> = stores.iter().map(stand).collect();
            standing.into_iter().map(|s| s.join().unwrap_or(Err("it panicked".to_owned()))).collect()
        });
        let terms = terms.into_iter().collect::<Result<Vec<Option<i64>>, String>>()?;
        let leaders: Vec<usize> = (0..terms.len()).filter(|&i| terms[i].is_some()).collect();
        let [leader] = leaders[..] else { return Err(format!("they lead: {terms:?}").into()) };
        let term = terms[leader].unwrap_or(0);
        assert!(term > last, "{term} after {last}");
        last = term;
        stores[leader].resign(term)?;
    }
    Ok(())
}

#[test]
fn a_lease_that_others_have_annotated_is_kept() -> Fallible {
    let server = Server::start()?;
    let store = server.store(LONG)?;
    let term = store.campaign()?.ok_or("nobody led, and nobody may")?;
    let conflicts =
        |count| server.state.lock().map(|mut state| state.conflicts = count).map_err(|e| e.to_string());
    conflicts(2)?;
    assert!(store.keep(term)?);
    conflicts(100)?;
    let failed = store.keep(term).err().ok_or("it was kept")?;
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    conflicts(0)?;
    assert!(store.keep(term)?);
    Ok(())
}

#[test]
fn who_may_not_ask_is_told_so_and_who_asks_nobody_too() -> Fallible {
    let server = Server::start()?;
    let store = server.store(SHORT)?;
    // The namespace is not there: then no Lease can be made in it.
    for (refusal, code) in [((403, "Forbidden"), Code::PermissionDenied), ((404, "NotFound"), Code::NotFound)]
    {
        server.state.lock().map_err(|e| e.to_string())?.refuses = Some(refusal);
        let failed = store.campaign().err().ok_or("it was let in")?;
        assert!(failed.code() == code && failed.to_string().contains("Lease team/job"), "{failed}");
    }

    let nobody = free_port()?;
    let store = KubernetesStore::new(Some(config(nobody)?), "job", SHORT)?;
    let failed = store.campaign().err().ok_or("nobody was asked, and agreed")?;
    assert!(
        failed.code() == Code::Unavailable && failed.to_string().contains(&nobody.to_string()),
        "{failed}"
    );
    Ok(())
}
