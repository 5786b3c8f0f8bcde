//! Tests of the service's answers to protobuf messages: codes, texts and payloads are those of TensorFlow's
//! workers.

use crate::cluster::*;
use graph::{Code, Graph, Tensor};
use proto::convert::{DefaultAttrs, graph_to_bytes};
use proto::remote::ENDED_KEY;
use proto::step_ids::SequenceEnd;
use proto::{Status, pb};
use tonic::codec::CompressionEncoding;

async fn failure<T>(call: impl Future<Output = Result<T, tonic::Status>>) -> Test<Status> {
    Ok(Status::from(call.await.err().ok_or("it succeeded")?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_handles_are_refused() -> Test {
    let tasks = cluster(1, |_| {})?;
    let mut client = tasks[0].client().await?;
    let graph = register_nothing(&mut client).await?;
    assert_eq!(graph, "0000000000000001");
    let lost =
        "Session handle is not found: zz. Possibly this worker (\"/job:w/replica:0/task:0\") just restarted.";

    let run = pb::RunGraphRequest { session_handle: "zz".into(), ..bare_run(&graph, 1, &[]) };
    let failed = failure(client.run_graph(run.clone())).await?;
    assert_eq!(failed, Status::new(Code::Aborted, lost).restarted());
    let in_body = pb::RunGraphRequest { store_errors_in_response_body: true, ..run };
    let body = client.run_graph(in_body).await?.into_inner();
    assert_eq!((body.status_code, body.status_error_message.as_str()), (Code::Aborted.number(), lost));

    let register = pb::RegisterGraphRequest {
        session_handle: "zz".into(),
        create_worker_session_called: true,
        ..Default::default()
    };
    assert_eq!(failure(client.register_graph(register)).await?.message, lost);

    let failed = failure(client.run_graph(bare_run("h", 1, &[]))).await?;
    assert_eq!(failed, Status::new(Code::Aborted, "Graph handle is not found: h"));
    let deregister = |graph: &str| pb::DeregisterGraphRequest {
        graph_handle: graph.to_owned(),
        session_handle: SESSION.into(),
        create_worker_session_called: true,
    };
    client.deregister_graph(deregister(&graph)).await?;
    let failed = failure(client.deregister_graph(deregister(&graph))).await?;
    let text = format!("Graph handle is not found: {graph}. Possibly, this worker just restarted.");
    assert_eq!(failed, Status::new(Code::Aborted, text));

    let empty = failure(client.create_worker_session(pb::CreateWorkerSessionRequest::default())).await?;
    assert_eq!(empty, Status::invalid("Session must be non-empty."));
    client.delete_worker_session(pb::DeleteWorkerSessionRequest { session_handle: "zz".into() }).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn masters_without_a_session_share_one() -> Test {
    let tasks = cluster(1, |_| {})?;
    let mut client = tasks[0].client().await?;
    let request = pb::RegisterGraphRequest { session_handle: "any".into(), ..Default::default() };
    let graph = client.register_graph(request).await?.into_inner().graph_handle;
    let run = pb::RunGraphRequest { graph_handle: graph, step_id: 3, ..Default::default() };
    client.run_graph(run).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_receives_are_refused() -> Test {
    let tasks = cluster(1, |_| {})?;
    let device = tasks[0].device();
    let mut client = tasks[0].client().await?;
    for malformed in
        ["", "a;b", "/job:w/replica:0/task:0/device:CPU:0;xyz;b;c;0:0", "a;0000000000000001;;c;0:0"]
    {
        let failed = failure(client.recv_tensor(bare_receive(1, malformed))).await?;
        assert_eq!(failed, Status::invalid(format!("Invalid  rendezvous key: {malformed}")));
    }
    let good = key(&device, &device, "x");
    let failed = failure(client.recv_tensor(bare_receive(1, &good.replace("CPU:0", "GPU:0")))).await?;
    assert_eq!(failed, Status::invalid("/device:GPU:0 unknown device."));

    let other = graph::DeviceAttributes { incarnation: 12, ..device.clone() };
    let failed = failure(client.recv_tensor(bare_receive(1, &key(&other, &device, "x")))).await?;
    let text = format!(
        "RecvTensor expects a different device incarnation: 12 vs. {}. Your worker job \
         (\"/job:w/replica:0/task:0\") was probably restarted. Check your worker job for the reason why it was \
         restarted.",
        device.incarnation
    );
    assert_eq!(failed, Status::new(Code::Aborted, text).restarted());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_request_ids_are_refused() -> Test {
    let tasks = cluster(1, |_| {})?;
    let device = tasks[0].device();
    let mut client = tasks[0].client().await?;
    let graph = register_nothing(&mut client).await?;
    let key = key(&device, &device, "x");
    let run = pb::RunGraphRequest { request_id: 7, ..bare_run(&graph, 1, &[(&key, &Tensor::scalar(1i32))]) };
    client.run_graph(run.clone()).await?;
    let failed = failure(client.run_graph(run)).await?;
    assert_eq!(failed.code, Code::Aborted);
    assert!(
        failed.message.starts_with("The same RunGraph (Worker) request was received twice. "),
        "{failed}"
    );
    let receive = pb::RecvTensorRequest { request_id: 7, ..bare_receive(1, &key) };
    client.recv_tensor(receive.clone()).await?;
    let failed = failure(client.recv_tensor(receive)).await?;
    assert!(
        failed.message.starts_with("The same RecvTensor (GrpcWorker) request was received twice. "),
        "{failed}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_may_be_compressed() -> Test {
    let tasks = cluster(1, |_| {})?;
    let device = tasks[0].device();
    let plain = tasks[0].client().await?;
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let mut client = plain.clone().send_compressed(encoding).accept_compressed(encoding);
        let graph = register_nothing(&mut client).await?;
        let step = encoding as i64 + 1;
        let key = key(&device, &device, "x");
        let value = Tensor::vector(&[0i64; 5000])?;
        client.run_graph(bare_run(&graph, step, &[(&key, &value)])).await?;
        let reply = client.recv_tensor(bare_receive(step, &key)).await?;
        assert_eq!(reply.metadata().get("grpc-encoding"), None);
        let tensor = reply.into_inner().tensor.unwrap_or_default();
        assert_eq!(proto::convert::tensor_from_proto(tensor)?, value);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn graphs_that_cannot_run_are_refused_naming_the_node() -> Test {
    let tasks = cluster(1, |_| {})?;
    let mut client = tasks[0].client().await?;
    register_nothing(&mut client).await?;
    for (device, code) in [
        ("", Code::InvalidArgument),
        ("/job:w/replica:0/task:0", Code::InvalidArgument),
        ("/job:w/replica:0/task:1/device:CPU:0", Code::InvalidArgument),
    ] {
        let graph = Graph::from_text(&format!("lost = NoOp @\"{device}\"\n"))?;
        let request = pb::RegisterGraphRequest {
            session_handle: SESSION.into(),
            create_worker_session_called: true,
            graph_def: graph_to_bytes(&graph, DefaultAttrs::Keep)?,
            ..Default::default()
        };
        let failed = failure(client.register_graph(request)).await?;
        assert_eq!(failed.code, code);
        assert!(failed.message.contains("lost"), "{failed}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_collectives_that_cannot_be_answered_are_refused() -> Test {
    let tasks = cluster(1, |_| {})?;
    let mut client = tasks[0].client().await?;
    let refused = failure(client.complete_group(pb::CompleteGroupRequest::default())).await?;
    assert_eq!(refused.code, Code::InvalidArgument);
    let device_attributes =
        client.get_status(pb::GetStatusRequest {}).await?.into_inner().device_attributes.pop();
    let join = pb::CompleteGroupRequest { group_size: -1, device_attributes, ..Default::default() };
    let refused = failure(client.complete_group(join)).await?;
    assert!(refused.message.contains("group_size is -1"), "{refused}");
    let refused = failure(client.complete_instance(pb::CompleteInstanceRequest::default())).await?;
    assert_eq!(refused.code, Code::FailedPrecondition);
    let src_device = "/job:w/replica:0/task:0/device:CPU:0".to_owned();
    let earlier = pb::RecvBufRequest { src_device, src_incarnation: 1, ..Default::default() };
    let refused = failure(client.recv_buf(earlier)).await?;
    assert_eq!(refused.code, Code::FailedPrecondition, "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_ids_are_the_same_for_all_masters_until_one_ends_their_sequence() -> Test {
    let tasks = cluster(1, |_| {})?;
    let mut client = tasks[0].client().await?;
    let request = || pb::GetStepSequenceRequest { graph_key: vec![7, 8] };
    let first = client.get_step_sequence(request()).await?.into_inner().step_sequence;
    assert_eq!(first.iter().map(|sequence| sequence.graph_key).collect::<Vec<_>>(), [7, 8]);
    assert_eq!(client.get_step_sequence(request()).await?.into_inner().step_sequence, first);
    let mut end = tonic::Request::new(pb::GetStepSequenceRequest::default());
    let failure = Some(Status::new(Code::Internal, "it broke"));
    let ended = SequenceEnd { session: "".into(), graph_key: 7, step_id: first[0].next_step_id, failure };
    end.metadata_mut().insert_bin(ENDED_KEY, ended.to_header());
    client.get_step_sequence(end).await?;
    let later = client.get_step_sequence(request()).await?.into_inner().step_sequence;
    assert_ne!(later[0].next_step_id, first[0].next_step_id);
    assert_eq!(later[1], first[1]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_are_listed_and_unimplemented_methods_refused() -> Test {
    let tasks = cluster(1, |config| config.cpu_devices = 2)?;
    let mut client = tasks[0].client().await?;
    let status = client.get_status(pb::GetStatusRequest {}).await?.into_inner();
    let names: Vec<&str> = status.device_attributes.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["/job:w/replica:0/task:0/device:CPU:0", "/job:w/replica:0/task:0/device:CPU:1"]);
    assert!(status.device_attributes.iter().all(|d| d.incarnation != 0 && d.device_type == "CPU"));
    client.cleanup_all(pb::CleanupAllRequest { container: vec!["".into(), "c".into()] }).await?;
    let failed = failure(client.tracing(pb::TracingRequest::default())).await?;
    assert_eq!(failed, Status::new(Code::Unimplemented, "Tracing"));
    let partial = pb::RunGraphRequest { is_partial: true, ..Default::default() };
    assert_eq!(failure(client.run_graph(partial)).await?.code, Code::Aborted);
    Ok(())
}
