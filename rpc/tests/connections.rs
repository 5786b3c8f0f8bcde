//! Tests of whole connections, with the client of the `h2` crate and with malformed input.

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::{BoxFuture, FutureExt};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use std::convert::Infallible;
use std::error::Error;
use std::future::{pending, ready};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;

use anabranch_rpc as rpc;
use rpc::{Answer, Call, Services};
use smallvec::SmallVec;

type Test<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Time after which a test counts as hanging.
const LONG: Duration = Duration::from_secs(60);

/// A service with a method that returns the payload of the request, and methods that wait or fail.
struct ParrotService {
    /// The sender of the events "begun" and "given up" of calls of the method `Wait`.
    events: mpsc::UnboundedSender<&'static str>,
}

impl NamedService for ParrotService {
    const NAME: &'static str = "test.Parrot";
}

struct ReportCancellation(mpsc::UnboundedSender<&'static str>);

impl Drop for ReportCancellation {
    fn drop(&mut self) {
        let _ = self.0.send("given up");
    }
}

impl rpc::Service for ParrotService {
    fn call(&self, call: Call) -> BoxFuture<'static, Answer> {
        let events = self.events.clone();
        match call.path().rsplit('/').next() {
            Some("Say") => Box::pin(async move {
                match call.message::<Payload>().await {
                    Ok(Payload { bytes }) => Answer::Message(pieces(bytes)),
                    Err(status) => Answer::Failure(status),
                }
            }),
            Some("Field") => {
                let value = call.field("x-parrot").unwrap_or_default().to_owned();
                Box::pin(ready(Answer::Message(pieces(value.into()))))
            }
            Some("Wait") => Box::pin(async move {
                let _guard = ReportCancellation(events.clone());
                let _ = events.send("begun");
                pending().await
            }),
            Some("WaitABit") => Box::pin(async move {
                let _ = events.send("begun");
                tokio::time::sleep(Duration::from_millis(200)).await;
                Answer::Message(pieces(Bytes::new()))
            }),
            Some("Panic") => panic!("at once"),
            Some("PanicLater") => Box::pin(async move {
                tokio::task::yield_now().await;
                panic!("later")
            }),
            _ => Box::pin(ready(Answer::Failure(Status::unimplemented("no such word: é")))),
        }
    }
}

/// A tower service like those that tonic generates. Its one method sends each part of the request back as it
/// arrives.
#[derive(Clone)]
struct EchoService;

impl NamedService for EchoService {
    const NAME: &'static str = "test.Echo";
}

impl tower_service::Service<Request<Body>> for EchoService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut response = Response::new(request.into_body());
            response.headers_mut().insert("x-echo", http::HeaderValue::from_static("yes"));
            Ok(response)
        })
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct Payload {
    #[prost(bytes = "bytes", tag = "1")]
    bytes: Bytes,
}

/// Returns a message as two pieces: gRPC's message header with the tag and length of the payload's field, and the
/// payload.
fn pieces(payload: Bytes) -> SmallVec<[Bytes; 2]> {
    let mut head = BytesMut::new();
    head.put_bytes(0, 5);
    if !payload.is_empty() {
        head.put_u8(0x0a);
        prost::encoding::encode_varint(payload.len() as u64, &mut head);
    }
    let len = (head.len() - 5 + payload.len()) as u32;
    head[1..5].copy_from_slice(&len.to_be_bytes());
    [head.freeze(), payload].into()
}

fn message(payload: &[u8]) -> Bytes {
    pieces(Bytes::copy_from_slice(payload)).concat().into()
}

struct Server {
    address: std::net::SocketAddr,
    events: mpsc::UnboundedReceiver<&'static str>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl Server {
    async fn start() -> Test<Server> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (sender, events) = mpsc::unbounded_channel();
        let services = Services::default().with(ParrotService { events: sender }).with(EchoService);
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = services.serve(TcpListenerStream::new(listener), stopped.map(drop));
        Ok(Server { address, events, stop: Some(stop), serving: tokio::spawn(serving) })
    }

    async fn next_event(&mut self) -> Test<&'static str> {
        Ok(timeout(LONG, self.events.recv()).await?.ok_or("the server has gone")?)
    }

    /// Connects a client with the settings of `builder`.
    async fn client(&self, builder: &h2::client::Builder) -> Test<SendRequest<Bytes>> {
        let (client, connection) = builder.handshake(TcpStream::connect(self.address).await?).await?;
        tokio::spawn(connection);
        Ok(client)
    }
}

fn request(path: &str) -> Test<Request<()>> {
    let builder = Request::builder().method("POST").uri(format!("http://parrot{path}"));
    Ok(builder.header("content-type", "application/grpc").header("te", "trailers").body(())?)
}

async fn begin(
    client: &mut SendRequest<Bytes>,
    request: Request<()>,
) -> Test<(ResponseFuture, SendStream<Bytes>)> {
    let mut ready = client.clone().ready().await?;
    Ok(ready.send_request(request, false)?)
}

/// Sends `bytes` on a stream, as the flow-control window allows.
async fn send(stream: &mut SendStream<Bytes>, mut bytes: Bytes, ends: bool) -> Test {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len().min(1 << 20));
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await.ok_or("no room")??;
        let part = bytes.split_to(room.min(bytes.len()));
        stream.send_data(part, ends && bytes.is_empty())?;
    }
    Ok(())
}

async fn next(body: &mut RecvStream) -> Test<Option<Bytes>> {
    let Some(part) = timeout(LONG, body.data()).await? else { return Ok(None) };
    let part = part?;
    body.flow_control().release_capacity(part.len())?;
    Ok(Some(part))
}

/// Reads a complete answer. Returns its bytes and its trailers.
async fn whole(response: ResponseFuture) -> Test<(Bytes, HeaderMap)> {
    let (head, mut body) = timeout(LONG, response).await??.into_parts();
    if head.status != 200 {
        return Err(format!("status {}", head.status).into());
    }
    let mut all = BytesMut::new();
    while let Some(part) = next(&mut body).await? {
        all.extend_from_slice(&part);
    }
    let trailers = timeout(LONG, body.trailers()).await??;
    Ok((all.freeze(), trailers.unwrap_or(head.headers)))
}

async fn call(client: &mut SendRequest<Bytes>, method: &str, payload: &[u8]) -> Test<(Bytes, HeaderMap)> {
    let (response, mut stream) = begin(client, request(&format!("/test.Parrot/{method}"))?).await?;
    // The server resets the request's stream if it answers before the request has ended, so an error is no
    // failure.
    let _ = send(&mut stream, message(payload), true).await;
    whole(response).await
}

fn status(fields: &HeaderMap) -> (&str, &str) {
    let field = |name| fields.get(name).and_then(|value| value.to_str().ok()).unwrap_or("none");
    (field("grpc-status"), field("grpc-message"))
}

/// Returns bytes whose values depend on their positions, so that a comparison detects misplaced parts.
fn pattern(len: usize) -> Bytes {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect::<Vec<_>>().into()
}

async fn assert_serves(client: &mut SendRequest<Bytes>) -> Test {
    let (answer, fields) = call(client, "Say", b"hello").await?;
    assert_eq!((&answer[..], status(&fields).0), (&message(b"hello")[..], "0"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_any_size_pass_any_window() -> Test {
    let server = Server::start().await?;
    let mut wide = h2::client::Builder::new();
    wide.initial_window_size(1 << 30).initial_connection_window_size(1 << 30).max_frame_size(1 << 20);
    for builder in [wide, h2::client::Builder::new()] {
        let mut client = server.client(&builder).await?;
        for len in [0, 1, 16_379, 16_380, 65_535, 70_000, 20 << 20] {
            let payload = pattern(len);
            let (answer, fields) = call(&mut client, "Say", &payload).await?;
            assert!(answer == message(&payload), "{len}");
            assert_eq!(status(&fields).0, "0");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_share_a_connection() -> Test {
    let server = Server::start().await?;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(1000);
    let client = server.client(&builder).await?;
    let calls = (0..200).map(|i| {
        let mut client = client.clone();
        async move {
            let payload = pattern(i * 997);
            let (answer, _) = call(&mut client, "Say", &payload).await?;
            Test::Ok(answer == message(&payload))
        }
    });
    for same in futures::future::join_all(calls).await {
        assert!(same?);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn header_fields_arrive_unchanged() -> Test {
    let server = Server::start().await?;
    for table in [None, Some(0), Some(64)] {
        let mut builder = h2::client::Builder::new();
        if let Some(size) = table {
            builder.header_table_size(size);
        }
        let mut client = server.client(&builder).await?;
        for value in ["a", "/same/", "/same/", &"x".repeat(3000), "{\"~\": 1}"] {
            let mut asked = request("/test.Parrot/Field")?;
            asked.headers_mut().insert("x-parrot", value.parse()?);
            let (response, mut stream) = begin(&mut client, asked).await?;
            let _ = stream.send_data(message(b""), true);
            let (answer, fields) = whole(response).await?;
            assert_eq!((&answer[..], status(&fields).0), (&message(value.as_bytes())[..], "0"));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_reported() -> Test {
    let server = Server::start().await?;
    let mut client = server.client(&h2::client::Builder::new()).await?;
    let (_, fields) = call(&mut client, "Sing", b"").await?;
    assert_eq!(status(&fields), ("12", "no%20such%20word:%20%C3%A9"));
    for method in ["Panic", "PanicLater"] {
        let (_, fields) = call(&mut client, method, b"").await?;
        let (code, text) = status(&fields);
        assert!(code == "13" && text.contains(&format!("/test.Parrot/{method}")), "{text}");
    }
    let (response, mut stream) = begin(&mut client, request("/test.Nobody/Say")?).await?;
    let _ = stream.send_data(Bytes::new(), true);
    assert_eq!(status(&whole(response).await?.1).0, "12");
    // Requests that are not one whole message fail with `Internal`.
    let short = message(b"abc").slice(..6);
    let twice = [message(b"abc"), message(b"abc")].concat();
    let compressed = [&[1][..], &message(b"abc")[1..]].concat();
    for rubbish in [short, twice.into(), compressed.into(), Bytes::new(), Bytes::from_static(b"\0\0")] {
        let (response, mut stream) = begin(&mut client, request("/test.Parrot/Say")?).await?;
        stream.send_data(rubbish, true)?;
        assert_eq!(status(&whole(response).await?.1).0, "13");
    }
    // Requests that are not gRPC calls are refused with an HTTP status.
    for (method, kind, code) in [("GET", "application/grpc", 405), ("POST", "text/html", 415)] {
        let mut asked = request("/test.Parrot/Say")?;
        *asked.method_mut() = method.parse()?;
        asked.headers_mut().insert("content-type", kind.parse()?);
        let (response, _stream) = begin(&mut client, asked).await?;
        assert_eq!(timeout(LONG, response).await??.status(), code);
    }
    assert_serves(&mut client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_work_in_both_directions_at_once() -> Test {
    let server = Server::start().await?;
    let mut client = server.client(&h2::client::Builder::new()).await?;
    let (response, mut stream) = begin(&mut client, request("/test.Echo/Any")?).await?;
    send(&mut stream, Bytes::from_static(b"first"), false).await?;
    let (head, mut body) = timeout(LONG, response).await??.into_parts();
    assert!(head.headers.contains_key("x-echo"));
    for part in [&b"first"[..], b"second", b"third"] {
        assert_eq!(next(&mut body).await?.as_deref(), Some(part));
        if part != b"third" {
            let answer = if part == b"first" { "second" } else { "third" };
            send(&mut stream, Bytes::from(answer), false).await?;
        }
    }
    // The payload exceeds all flow-control windows: the sender must wait for the reader.
    let all = pattern(8 << 20);
    let sent = tokio::spawn({
        let all = all.clone();
        async move { send(&mut stream, all, true).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut got = BytesMut::new();
    while let Some(part) = next(&mut body).await? {
        got.extend_from_slice(&part);
    }
    sent.await??;
    assert!(got == all);
    assert_serves(&mut client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_when_their_client_cancels_or_dies() -> Test {
    let mut server = Server::start().await?;
    let mut client = server.client(&h2::client::Builder::new()).await?;
    let (response, mut stream) = begin(&mut client, request("/test.Parrot/Wait")?).await?;
    stream.send_data(message(b""), true)?;
    assert_eq!(server.next_event().await?, "begun");
    drop((response, stream));
    assert_eq!(server.next_event().await?, "given up");
    assert_serves(&mut client).await?;
    // The call of a client whose connection ends is cancelled.
    let socket = TcpStream::connect(server.address).await?;
    let (mut client, connection) = h2::client::handshake(socket).await?;
    let connection = tokio::spawn(connection);
    let (_response, mut stream) = begin(&mut client, request("/test.Parrot/Wait")?).await?;
    stream.send_data(message(b""), true)?;
    assert_eq!(server.next_event().await?, "begun");
    connection.abort();
    assert_eq!(server.next_event().await?, "given up");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_delays_no_other() -> Test {
    let server = Server::start().await?;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(1 << 30).initial_connection_window_size(1 << 30);
    // The client's connection is polled long enough to send the request, and not any more, so the client
    // reads no answer.
    let (client, mut connection) = builder.handshake(TcpStream::connect(server.address).await?).await?;
    let mut ready = client.ready().await?;
    let (_response, mut stream) = ready.send_request(request("/test.Parrot/Say")?, false)?;
    stream.send_data(message(&pattern(32 << 20)), true)?;
    let _ = timeout(Duration::from_millis(500), &mut connection).await;
    let mut other = server.client(&builder).await?;
    for _ in 0..20 {
        assert_serves(&mut other).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_not_http2_are_refused() -> Test {
    let server = Server::start().await?;
    let mut client = server.client(&h2::client::Builder::new()).await?;
    let ping_of_a_stream =
        [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 8, 6, 0, 0, 0, 0, 1], &[0; 8]].concat();
    for input in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 300], &ping_of_a_stream] {
        let mut socket = TcpStream::connect(server.address).await?;
        socket.write_all(input).await?;
        let mut answer = Vec::new();
        timeout(LONG, socket.read_to_end(&mut answer)).await??;
        // The last frame is a GOAWAY with the error code for a protocol error.
        let leave =
            answer.windows(9).rposition(|head| head[3] == 7 && head[4..9] == [0; 5]).ok_or("no leave")?;
        assert_eq!(answer[leave + 13..leave + 17], 1u32.to_be_bytes());
        assert_serves(&mut client).await?;
    }
    // A client that sends only a part of the preface delays no other client.
    let mut half = TcpStream::connect(server.address).await?;
    half.write_all(b"PRI * HTT").await?;
    assert_serves(&mut client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_server_answers_calls_in_progress() -> Test {
    let mut server = Server::start().await?;
    let mut client = server.client(&h2::client::Builder::new()).await?;
    let mut idle = server.client(&h2::client::Builder::new()).await?;
    assert_serves(&mut idle).await?;
    let (response, mut stream) = begin(&mut client, request("/test.Parrot/WaitABit")?).await?;
    stream.send_data(message(b""), true)?;
    assert_eq!(server.next_event().await?, "begun");
    server.stop.take();
    let (answer, fields) = whole(response).await?;
    assert_eq!((&answer[..], status(&fields).0), (&message(b"")[..], "0"));
    timeout(LONG, server.serving).await??;
    assert!(call(&mut idle, "Say", b"x").await.is_err());
    assert!(TcpStream::connect(server.address).await.is_err());
    Ok(())
}
