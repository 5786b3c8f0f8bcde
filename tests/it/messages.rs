//! Compression and size limits of messages: requests may be compressed, answers never are, and messages may be as large
//! as the protobuf format allows.

use crate::support::cluster::Cluster;
use crate::support::rpc::{Rpc, assert_fails, binary, bytes, def, placeholder, step};
use crate::support::{Fallible, python};

use anabranch::graph::Tensor;
use anabranch::proto::convert::tensor_from_proto;
use anabranch::proto::pb;
use tonic::Code;
use tonic::codec::CompressionEncoding;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_may_be_compressed_and_answers_never_are() -> Fallible {
    let cluster = Cluster::start(&[("worker", 1)])?;
    let rpc = Rpc::connect(&cluster, "worker", 0).await?;
    let value = Tensor::vector(&[1.5f32; 100_000])?;
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let mut master = rpc.master.clone().send_compressed(encoding).accept_compressed(encoding);
        let graph_def = bytes(&def([placeholder("x"), binary("twice", "AddV2", "x", "x")]));
        let request = pb::CreateSessionRequest { graph_def, ..Default::default() };
        let session = master.create_session(request).await?.into_inner().session_handle;
        let reply = master.run_step(step(&session, &[("x:0", value.clone())], &["twice:0"], &[])).await?;
        assert_eq!(reply.metadata().get("grpc-encoding"), None, "{encoding:?}");
        let fetched = reply.into_inner().tensor.pop().and_then(|t| t.tensor).ok_or("nothing was fetched")?;
        assert_eq!(tensor_from_proto(fetched)?, Tensor::vector(&[3f32; 100_000])?);
        rpc.close_session(&session).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_compression_is_refused() -> Fallible {
    let cluster = Cluster::start(&[("worker", 1)])?;
    let rpc = Rpc::connect(&cluster, "worker", 0).await?;
    let mut request = tonic::Request::new(pb::CreateSessionRequest::default());
    request.metadata_mut().insert("grpc-encoding", "snappy".parse()?);
    assert_fails(rpc.master.clone().create_session(request).await, Code::Unimplemented, &["snappy"]);
    rpc.check_health().await
}

/// The test runs only if `ANABRANCH_LARGE_MESSAGES` is set, because it takes gigabytes of memory; run it without other
/// tests.
#[test]
fn messages_up_to_two_gibibytes_are_sent_and_larger_ones_fail() -> Fallible {
    if std::env::var_os("ANABRANCH_LARGE_MESSAGES").is_none() {
        return Ok(());
    }
    for transport in ["shm", "tcp", "grpc"] {
        let cluster = Cluster::start_with(&[("worker", 1), ("ps", 1)], &["--transport", transport])?;
        let mut client = python::script("tests/tensorflow/large_messages.py")?;
        client.args(["--target", &cluster.target("worker", 0), "--transport", transport]);
        let output = python::run(&mut client)?;
        assert_eq!(output.lines().filter(|l| l.starts_with("ok ")).count(), 4, "{transport}: {output}");
    }
    Ok(())
}
