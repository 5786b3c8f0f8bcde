//! Calls with handles of sessions, graphs, tensors and steps that do not exist.

use super::{SOON, WORKER, counter, cpu, pair, single};
use crate::support::Fallible;
use crate::support::rpc::{assert_fails, bytes, constant, def, in_body, on, placeholder, step, unary};
use anabranch::graph::Tensor;
use anabranch::proto::convert::tensor_to_proto;
use anabranch::proto::pb;
use std::time::{Duration, Instant};
use tonic::Code;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_refuses_unknown_session_handles() -> Fallible {
    let (_cluster, rpc) = single().await?;
    let text = "Session zz is not found.";
    let run = step("zz", &[], &["a:0"], &[]);
    assert_eq!(assert_fails(rpc.run_step(run.clone()).await, Code::Aborted, &[]), text);
    assert_eq!(assert_fails(rpc.run_step(in_body(run)).await, Code::Aborted, &[]), text);
    let extend = pb::ExtendSessionRequest { session_handle: "zz".into(), ..Default::default() };
    assert_eq!(assert_fails(rpc.master.clone().extend_session(extend).await, Code::Aborted, &[]), text);
    let restarted = "Session zz is not found. Possibly, this master has restarted.";
    assert_eq!(assert_fails(rpc.close_session("zz").await, Code::Aborted, &[]), restarted);
    let list = pb::ListDevicesRequest { session_handle: "zz".into() };
    let listed = rpc.master.clone().list_devices(list).await;
    assert_eq!(assert_fails(listed, Code::InvalidArgument, &[]), restarted);
    let (partial, setup) = ("zz".to_owned(), pb::PartialRunSetupRequest::default());
    let setup = pb::PartialRunSetupRequest { session_handle: partial, ..setup };
    let failed = rpc.master.clone().partial_run_setup(setup).await;
    assert_eq!(assert_fails(failed, Code::Aborted, &[]), text);
    let make = pb::MakeCallableRequest { session_handle: "zz".into(), ..Default::default() };
    assert_eq!(assert_fails(rpc.master.clone().make_callable(make).await, Code::Aborted, &[]), text);
    let call = pb::RunCallableRequest { session_handle: "zz".into(), ..Default::default() };
    assert_eq!(assert_fails(rpc.master.clone().run_callable(call).await, Code::Aborted, &[]), text);
    let session = rpc.create_session(def([constant("a", 1.0)])).await?;
    let partial = pb::RunStepRequest { partial_run_handle: "7".into(), ..step(&session, &[], &["a:0"], &[]) };
    let unprepared = "Must run PartialRunSetup before performing partial runs";
    assert_eq!(assert_fails(rpc.run_step(partial).await, Code::InvalidArgument, &[]), unprepared);
    let call = pb::RunCallableRequest { session_handle: session.clone(), handle: 4, ..Default::default() };
    let failed = rpc.master.clone().run_callable(call.clone()).await;
    assert_eq!(assert_fails(failed, Code::InvalidArgument, &[]), "No such callable handle: 4");
    let options =
        pb::CallableOptions { feed: vec!["a:0".into()], target: vec!["a".into()], ..Default::default() };
    let make =
        pb::MakeCallableRequest { options: Some(options), session_handle: session.clone(), request_id: 9 };
    let handle = rpc.master.clone().make_callable(make.clone()).await?.into_inner().handle;
    assert_fails(rpc.master.clone().make_callable(make).await, Code::Aborted, &["received twice"]);
    let call = pb::RunCallableRequest { handle, ..call };
    let failed = rpc.master.clone().run_callable(call.clone()).await;
    assert_eq!(assert_fails(failed, Code::InvalidArgument, &[]), "Expected 1 feed tensors, but got 0");
    let release = pb::ReleaseCallableRequest { session_handle: session, handle };
    rpc.master.clone().release_callable(release).await?;
    let released = format!("Attempted to run callable after handle was released: {handle}");
    let failed = rpc.master.clone().run_callable(call).await;
    assert_eq!(assert_fails(failed, Code::InvalidArgument, &[]), released);
    rpc.check_health().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_with_invalid_feeds_fetches_or_targets_are_refused() -> Fallible {
    let (_cluster, rpc) = single().await?;
    let graph = def([placeholder("p"), constant("a", 1.0), unary("n", "Neg", "p")]);
    let session = rpc.create_session(graph).await?;
    let one = || Tensor::scalar(1f32);
    let cases: [(pb::RunStepRequest, Code, &str); 11] = [
        (
            step(&session, &[], &[], &[]),
            Code::InvalidArgument,
            "Must specify at least one target to fetch or execute.",
        ),
        (step(&session, &[], &["x:0"], &[]), Code::NotFound, "FetchOutputs node x:0: not found"),
        (step(&session, &[], &["x"], &[]), Code::NotFound, "FetchOutputs node x:0: not found"),
        (
            step(&session, &[], &["a:1"], &[]),
            Code::InvalidArgument,
            "FetchOutputs a:1: output index too large, must be < 1",
        ),
        (
            step(&session, &[], &[], &["x"]),
            Code::NotFound,
            "PruneForTargets: Some target nodes not found: x ",
        ),
        (
            step(&session, &[("x:0", one())], &["a:0"], &[]),
            Code::NotFound,
            "FeedInputs: unable to find feed output x:0",
        ),
        (
            step(&session, &[("p:3", one())], &["n:0"], &[]),
            Code::InvalidArgument,
            "FeedInputs: p:3 should have output index < 1",
        ),
        (
            step(&session, &[("p:0", one()), ("p:0", one())], &["n:0"], &[]),
            Code::InvalidArgument,
            "Endpoint \"p:0\" fed more than once.",
        ),
        (
            step(&session, &[("p:0", one()), ("p", one())], &["n:0"], &[]),
            Code::InvalidArgument,
            "Endpoint \"p:0\" fed more than once.",
        ),
        (
            step(&session, &[("p:0", one())], &["p:0"], &[]),
            Code::InvalidArgument,
            "p:0 is both fed and fetched.",
        ),
        (
            step(&session, &[], &["n:0"], &[]),
            Code::InvalidArgument,
            "You must feed a value for placeholder tensor 'p' with dtype float\n\t [[{{node p}}]]",
        ),
    ];
    // A valid step runs first, so that a plan is in the cache, which must not be used for the invalid steps.
    rpc.run_step(step(&session, &[("p:0", one())], &["n:0"], &[])).await?;
    let mut wrong = Vec::new();
    for (request, code, text) in cases {
        for request in [request.clone(), in_body(request)] {
            match rpc.run_step(request).await {
                Err(s) if s.code() == code && s.message() == text => {}
                other => wrong.push(format!("{code:?} {text}\n got {other:?}")),
            }
        }
    }
    // A feed of the wrong type is refused.
    let ints = step(&session, &[("p:0", Tensor::scalar(1i32))], &["n:0"], &[]);
    match rpc.run_step(ints).await {
        Err(s) if s.code() == Code::InvalidArgument && s.message().contains('p') => {}
        other => wrong.push(format!("an int32 for a float: {other:?}")),
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The session still works.
    rpc.run_step(step(&session, &[("p", one())], &["n"], &[])).await?;
    let stale = pb::ExtendSessionRequest {
        session_handle: session.clone(),
        graph_def: bytes(&def([constant("b", 1.0)])),
        current_graph_version: 3,
    };
    let text = "Current version is 0 but caller expected 3.";
    assert_eq!(assert_fails(rpc.master.clone().extend_session(stale).await, Code::Aborted, &[]), text);
    let again = pb::ExtendSessionRequest {
        session_handle: session.clone(),
        graph_def: bytes(&def([constant("a", 1.0)])),
        current_graph_version: 0,
    };
    let text = "GraphDef argument to Extend includes node 'a', which was created by a previous call to Create or \
                Extend in this session.";
    assert_eq!(
        assert_fails(rpc.master.clone().extend_session(again).await, Code::InvalidArgument, &[]),
        text
    );
    let threads = pb::CreateSessionRequest {
        config: Some(pb::ConfigProto { use_per_session_threads: true, ..Default::default() }),
        ..Default::default()
    };
    let text = "Distributed session does not support session thread pool options.";
    let refused = rpc.master.clone().create_session(threads).await;
    assert_eq!(assert_fails(refused, Code::InvalidArgument, &[]), text);
    rpc.run_step(step(&session, &[("p", one())], &["n"], &[])).await?;
    rpc.close_session(&session).await?;
    rpc.check_health().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_refuses_unknown_handles() -> Fallible {
    let (_cluster, rpc) = single().await?;
    let mut worker = rpc.worker.clone();
    let lost =
        format!("Session handle is not found: zz. Possibly this worker (\"{WORKER}\") just restarted.");
    let register = |session: &str| pb::RegisterGraphRequest {
        session_handle: session.into(),
        create_worker_session_called: true,
        graph_def: bytes(&def([on(&cpu(WORKER), constant("a", 1.0))])),
        ..Default::default()
    };
    assert_eq!(assert_fails(worker.register_graph(register("zz")).await, Code::Aborted, &[]), lost);
    let run = pb::RunGraphRequest {
        session_handle: "zz".into(),
        create_worker_session_called: true,
        graph_handle: "g".into(),
        step_id: 1,
        ..Default::default()
    };
    assert_eq!(assert_fails(worker.run_graph(run.clone()).await, Code::Aborted, &[]), lost);
    let body = pb::RunGraphRequest { store_errors_in_response_body: true, ..run.clone() };
    let body = worker.run_graph(body).await?.into_inner();
    assert_eq!((body.status_code, body.status_error_message), (Code::Aborted as i32, lost.clone()));

    let create = |session: &str| pb::CreateWorkerSessionRequest {
        session_handle: session.into(),
        ..Default::default()
    };
    let empty = worker.create_worker_session(create("")).await;
    assert_eq!(assert_fails(empty, Code::InvalidArgument, &[]), "Session must be non-empty.");
    worker.create_worker_session(create("s")).await?;
    worker.create_worker_session(create("s")).await?;
    let known = pb::RunGraphRequest { session_handle: "s".into(), ..run };
    let unknown = worker.run_graph(known.clone()).await;
    assert_eq!(assert_fails(unknown, Code::Aborted, &[]), "Graph handle is not found: g");
    let deregister = pb::DeregisterGraphRequest {
        session_handle: "s".into(),
        graph_handle: "g".into(),
        create_worker_session_called: true,
    };
    let text = "Graph handle is not found: g. Possibly, this worker just restarted.";
    assert_eq!(assert_fails(worker.deregister_graph(deregister).await, Code::Aborted, &[]), text);

    // RegisterGraph refuses graphs whose node is not placed, or is placed on another task.
    for device in ["", "/job:ps/replica:0/task:0/device:CPU:0", "nonsense"] {
        let mut request = register("s");
        request.graph_def = bytes(&def([on(device, constant("a", 1.0))]));
        assert_fails(worker.register_graph(request).await, Code::InvalidArgument, &["a"]);
    }

    let handle = worker.register_graph(register("s")).await?.into_inner().graph_handle;
    let known = pb::RunGraphRequest { graph_handle: handle, request_id: 99, ..known };
    worker.run_graph(known.clone()).await?;
    let twice = worker.run_graph(known).await;
    assert_fails(twice, Code::Aborted, &["The same RunGraph (Worker) request was received twice. "]);

    let delete = pb::DeleteWorkerSessionRequest { session_handle: "missing".into() };
    worker.delete_worker_session(delete).await?;
    worker.cleanup_graph(pb::CleanupGraphRequest { step_id: 4711 }).await?;
    rpc.check_health().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_receive_requests_are_refused() -> Fallible {
    let (_cluster, rpc) = single().await?;
    let mut worker = rpc.worker.clone();
    let receive = |key: &str| pb::RecvTensorRequest {
        step_id: 5,
        rendezvous_key: key.to_owned(),
        ..Default::default()
    };
    for key in ["", "a;b", "a;xyz;b;c;0:0", ";1;b;c;0:0"] {
        let text = format!("Invalid  rendezvous key: {key}");
        let failed = assert_fails(worker.recv_tensor(receive(key)).await, Code::InvalidArgument, &[]);
        assert_eq!(failed, text);
    }
    let here = cpu(WORKER);
    let gpu = format!("{WORKER}/device:GPU:0;0000000000000001;{here};edge;0:0");
    let failed = assert_fails(worker.recv_tensor(receive(&gpu)).await, Code::InvalidArgument, &[]);
    assert_eq!(failed, "/device:GPU:0 unknown device.");
    let devices = worker.get_status(pb::GetStatusRequest {}).await?.into_inner().device_attributes;
    let incarnation = devices.first().ok_or("no device")?.incarnation;
    let other = incarnation ^ 1;
    let stale = format!("{here};{other:016x};{here};edge;0:0");
    let status = worker.recv_tensor(receive(&stale)).await.err().ok_or("a tensor was received")?;
    let text = format!(
        "RecvTensor expects a different device incarnation: {other} vs. {incarnation}. Your worker job \
         (\"{WORKER}\") was probably restarted. Check your worker job for the reason why it was restarted."
    );
    assert_eq!((status.code(), status.message()), (Code::Aborted, text.as_str()));
    let details = status.details();
    let payload_type = anabranch::proto::WORKER_POSSIBLY_RESTARTED.as_bytes();
    assert!(details.windows(payload_type.len()).any(|w| w == payload_type), "{details:?}");

    // A RecvTensor request for a step that never runs ends at the caller's deadline, or when the step is
    // cleaned up.
    let key = format!("{here};{incarnation:016x};{here};edge;0:0");
    let mut impatient = tonic::Request::new(receive(&key));
    impatient.set_timeout(Duration::from_millis(50));
    let start = Instant::now();
    let late = worker.recv_tensor(impatient).await.err().ok_or("a tensor was received")?;
    assert!(matches!(late.code(), Code::Cancelled | Code::DeadlineExceeded), "{late:?}");
    let waiting = tokio::spawn({
        let (mut worker, request) = (worker.clone(), receive(&key));
        async move { worker.recv_tensor(request).await }
    });
    while !waiting.is_finished() {
        worker.cleanup_graph(pb::CleanupGraphRequest { step_id: 5 }).await?;
    }
    assert_fails(waiting.await?, Code::Aborted, &["5"]);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let once = pb::RecvTensorRequest { step_id: 5, request_id: 8, ..receive(&key) };
    assert_fails(worker.recv_tensor(once.clone()).await, Code::Aborted, &["Step 5"]);
    let twice = worker.recv_tensor(once).await;
    assert_fails(twice, Code::Aborted, &["The same RecvTensor (GrpcWorker) request was received twice. "]);
    rpc.check_health().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_step_request_runs_once() -> Fallible {
    let (_cluster, rpc) = pair().await?;
    let session = rpc.create_session(def(counter())).await?;
    rpc.run_step(step(&session, &[], &[], &["init"])).await?;
    let count = pb::RunStepRequest { request_id: 77, ..step(&session, &[], &[], &["count"]) };
    rpc.run_step(count.clone()).await?;
    for repeat in [count.clone(), in_body(count)] {
        let text = "The same RunStep (Master) request was received twice. ";
        assert_fails(rpc.run_step(repeat).await, Code::Aborted, &[text]);
    }
    let value = rpc.run_step(step(&session, &[], &["here:0"], &[])).await?;
    assert_eq!(value[0].tensor, Some(tensor_to_proto(&Tensor::scalar(2f32))));
    rpc.close_session(&session).await?;
    rpc.check_health().await
}
