//! Tests that a call whose caller stops waiting leaves no state on the workers.

use anabranch_master::{Master, MasterConfig};
use futures::FutureExt;
use graph::{Code, DeviceAttributes, DeviceName, Node, Scope, TaskName, Tensor};
use parking_lot::Mutex;
use proto::Status;
use proto::link::{
    Call, CreateSession, CreateWorkerSession, MasterLink, RegisterGraph, RunGraph, RunGraphOutcome, RunStep,
    WorkerLink,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(60);

type Test<T = ()> = Result<T, Box<dyn Error>>;

/// A worker that reports each call, and blocks the call named in `blocked_call` until it is released.
#[derive(Debug)]
struct Worker {
    task: TaskName,
    calls: mpsc::UnboundedSender<&'static str>,
    blocked_call: Mutex<Option<&'static str>>,
    release: Semaphore,
}

impl Worker {
    fn new(
        index: u32,
        blocked_call: Option<&'static str>,
    ) -> (Arc<Worker>, mpsc::UnboundedReceiver<&'static str>) {
        let (sender, calls) = mpsc::unbounded_channel();
        let (task, release) = (TaskName::new("w", index), Semaphore::new(0));
        (Arc::new(Worker { task, calls: sender, blocked_call: Mutex::new(blocked_call), release }), calls)
    }

    async fn report_call(&self, call: &'static str) -> Result<(), Status> {
        self.calls.send(call).map_err(|e| Status::invalid(e.to_string()))?;
        if *self.blocked_call.lock() == Some(call) {
            let permit = self.release.acquire().await;
            permit.map_err(|e| Status::invalid(e.to_string()))?.forget();
        }
        Ok(())
    }
}

impl WorkerLink for Worker {
    fn status(&self, _: Option<Instant>) -> Call<'_, Vec<DeviceAttributes>> {
        Box::pin(async move {
            Ok(vec![DeviceAttributes {
                name: DeviceName::new(&self.task, "CPU", 0),
                memory_limit: 1 << 20,
                incarnation: 7,
                physical_description: Default::default(),
            }])
        })
    }

    fn create_session(&self, _: CreateWorkerSession) -> Call<'_, ()> {
        Box::pin(async move { self.report_call("create").await })
    }

    fn delete_session<'a>(&'a self, _: &'a str, _: Option<Instant>) -> Call<'a, ()> {
        Box::pin(async move { self.report_call("delete").await })
    }

    fn register_graph(&self, _: RegisterGraph) -> Call<'_, Arc<str>> {
        Box::pin(async move {
            self.report_call("register").await?;
            Ok("g".into())
        })
    }

    fn deregister_graph<'a>(&'a self, _: &'a str, _: &'a str) -> Call<'a, ()> {
        Box::pin(async move { self.report_call("deregister").await })
    }

    fn run_graph(&self, _: RunGraph) -> Call<'_, RunGraphOutcome> {
        Box::pin(async move {
            self.report_call("run").await?;
            Ok(RunGraphOutcome::default())
        })
    }

    fn cleanup_graph(&self, _: i64) -> Call<'_, ()> {
        Box::pin(async move { self.report_call("cleanup").await })
    }

    fn logging(&self, _: proto::pb::LoggingRequest) -> Call<'_, Vec<proto::pb::LabeledStepStats>> {
        Box::pin(async move { Ok(Vec::new()) })
    }

    fn cleanup_all<'a>(&'a self, _: &'a [String]) -> Call<'a, ()> {
        Box::pin(async move { self.report_call("cleanup all").await })
    }
}

#[derive(Debug)]
struct AnyKernel;

impl placer::Kernels for AnyKernel {
    fn priority(&self, _: &str, _: &Node) -> Option<i32> {
        Some(0)
    }

    fn registered(&self, _: &str) -> String {
        String::new()
    }
}

struct NoKernel;

impl graph::ops::Evaluate for NoKernel {
    fn evaluate(&self, _: &Node, _: &[Tensor]) -> Option<graph::Result<Vec<Tensor>>> {
        None
    }
}

struct Setup {
    master: Arc<Master>,
    worker: Arc<Worker>,
    calls: mpsc::UnboundedReceiver<&'static str>,
}

impl Setup {
    fn new(blocked_call: Option<&'static str>) -> Setup {
        let (worker, calls) = Worker::new(0, blocked_call);
        Setup::with(worker.clone(), calls, &[worker])
    }

    /// Returns a setup whose master is in the task of `worker` and has links to the workers in `all`.
    fn with(worker: Arc<Worker>, calls: mpsc::UnboundedReceiver<&'static str>, all: &[Arc<Worker>]) -> Setup {
        let link = |worker: &Arc<Worker>| (worker.task.clone(), worker.clone() as Arc<dyn WorkerLink>);
        let master = Master::new(MasterConfig {
            task: worker.task.clone(),
            workers: all.iter().map(link).collect::<BTreeMap<_, _>>(),
            address: String::new(),
            default_config: Default::default(),
            connect_deadline: LONG,
            event_streams: Arc::default(),
            kernels: Arc::new(AnyKernel),
            evaluator: Arc::new(NoKernel),
        });
        Setup { master, worker, calls }
    }

    async fn next_call(&mut self) -> Test<&'static str> {
        Ok(timeout(LONG, self.calls.recv()).await?.ok_or("the worker is gone")?)
    }

    async fn session(&self) -> Test<Arc<str>> {
        let scope = Scope::new();
        for i in 0..300 {
            scope.op("NoOp").name(&format!("n{i}")).node();
        }
        let request = CreateSession { graph: scope.finish()?, ..Default::default() };
        Ok(self.master.create_session(request).await?.session)
    }
}

fn step(session: &Arc<str>, target: &str) -> RunStep {
    RunStep { session: session.clone(), targets: vec![target.to_owned()], ..Default::default() }
}

#[tokio::test]
async fn a_session_whose_caller_has_gone_is_closed() -> Test {
    let mut setup = Setup::new(Some("create"));
    let master = setup.master.clone();
    let creating =
        tokio::spawn(async move { master.create_session(CreateSession::default()).await.map(drop) });
    assert_eq!(setup.next_call().await?, "create");
    creating.abort();
    assert!(creating.await.is_err_and(|e| e.is_cancelled()));
    setup.worker.release.add_permits(1);
    assert_eq!(setup.next_call().await?, "delete");
    Ok(())
}

#[tokio::test]
async fn a_session_does_not_wait_for_an_unneeded_task_that_hangs() -> Test {
    let (own, calls) = Worker::new(0, None);
    let (other, mut other_calls) = Worker::new(1, Some("create"));
    let mut setup = Setup::with(own.clone(), calls, &[own, other]);
    let session = timeout(LONG / 2, setup.session()).await??;
    for call in ["create", "delete"] {
        assert_eq!(timeout(LONG, other_calls.recv()).await?, Some(call));
    }
    setup.master.run_step(step(&session, "n1")).await?;
    assert_eq!(setup.next_call().await?, "create");
    let devices = setup.master.list_devices(Some(&session)).await?;
    assert_eq!(devices.local.len() + devices.remote.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_session_is_closed_although_the_caller_stops_waiting() -> Test {
    let mut setup = Setup::new(Some("run"));
    let session = setup.session().await?;
    let (master, request) = (setup.master.clone(), step(&session, "n1"));
    let running = tokio::spawn(async move { master.run_step(request).await.map(drop) });
    for call in ["create", "register", "run"] {
        assert_eq!(setup.next_call().await?, call);
    }
    // The future of the close is polled once, and dropped while the step still runs.
    assert!(setup.master.close_session(&session).now_or_never().is_none());
    assert_eq!(running.await?.err().map(|s| s.code), Some(Code::Cancelled));
    let mut cleanup_calls = vec![setup.next_call().await?, setup.next_call().await?];
    cleanup_calls.sort_unstable();
    assert_eq!(cleanup_calls, ["cleanup", "delete"]);
    let again = setup.master.close_session(&session).await;
    assert_eq!(again.err().map(|s| s.code), Some(Code::Aborted));
    Ok(())
}

#[tokio::test]
async fn a_plan_whose_first_step_was_cancelled_serves_the_next() -> Test {
    let mut setup = Setup::new(Some("register"));
    let session = setup.session().await?;
    let (master, request) = (setup.master.clone(), step(&session, "n1"));
    let running = tokio::spawn(async move { master.run_step(request).await.map(drop) });
    for call in ["create", "register"] {
        assert_eq!(setup.next_call().await?, call);
    }
    running.abort();
    assert!(running.await.is_err());
    setup.worker.release.add_permits(1);
    setup.master.run_step(step(&session, "n1")).await?;
    assert_eq!(setup.next_call().await?, "run");
    Ok(())
}

#[tokio::test]
async fn an_evicted_plan_is_deregistered() -> Test {
    let mut setup = Setup::new(None);
    let session = setup.session().await?;
    for i in 0..257 {
        setup.master.run_step(step(&session, &format!("n{i}"))).await?;
    }
    while setup.next_call().await? != "deregister" {}
    // The plan of `n0` was evicted from the cache, so it is made again.
    setup.master.run_step(step(&session, "n0")).await?;
    Ok(())
}

#[tokio::test]
async fn shutdown_waits_for_steps_and_refuses_new_ones() -> Test {
    let mut setup = Setup::new(Some("run"));
    let session = setup.session().await?;
    let (master, request) = (setup.master.clone(), step(&session, "n1"));
    let running = tokio::spawn(async move { master.run_step(request).await.map(drop) });
    for call in ["create", "register", "run"] {
        assert_eq!(setup.next_call().await?, call);
    }
    let mut stopping = Box::pin(setup.master.shutdown(LONG));
    assert!(stopping.as_mut().now_or_never().is_none());
    for refused in [
        setup.master.run_step(step(&session, "n2")).await.map(drop),
        setup.master.create_session(CreateSession::default()).await.map(drop),
    ] {
        let refused = refused.err().ok_or("the request was accepted")?;
        assert_eq!(refused.code, Code::Unavailable);
        assert!(refused.message.contains("w/replica:0/task:0 is shutting down"), "{refused}");
    }
    setup.worker.release.add_permits(1);
    timeout(LONG, stopping).await?;
    // The step in flight is not affected and succeeds.
    running.await??;
    Ok(())
}
