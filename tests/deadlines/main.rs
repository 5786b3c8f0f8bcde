//! Clusters of real processes: sessions, elections, faults and recovery. These tests wait for events within deadlines,
//! so they are in another test program than the heavy tests of `tests/it`.

mod all_reduce;
mod asynchronous_saves;
mod elastic;
mod election;
#[cfg(feature = "etcd")]
mod etcd;
mod failures;
mod fault_loop;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod links;
mod ps_replicas;
mod recovery;
mod sessions;
mod stalls;
#[path = "../support/mod.rs"]
mod support;
mod training_end;

/// The entry point of replica processes: a [`Job`](support::job::Job) starts this program with this test selected.
#[test]
fn replica() -> support::Fallible {
    support::replica::run_if_replica_process()
}
