//! A call as a service gets it, and what it may answer.

use crate::connection::Connection;
use crate::hpack::{Field, GRPC, put_field, put_status};
use crate::state::Part;
use crate::stream::{PREFIX, Trailers};
use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Version};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use prost::Message;
use smallvec::SmallVec;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;

/// One call of a client.
#[derive(Debug)]
pub struct Call {
    fields: Vec<Field>,
    request: Incoming,
}

impl Call {
    pub(crate) fn new(fields: Vec<Field>, request: Incoming) -> Call {
        Call { fields, request }
    }

    /// The value of a field, of several the first.
    pub fn field(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.value(name)?).ok()
    }

    /// As [`Call::field`], to be kept beyond the call.
    pub(crate) fn value(&self, name: &str) -> Option<&Bytes> {
        let field = self.fields.iter().find(|field| field.name == name.as_bytes())?;
        Some(&field.value)
    }

    /// `/package.Service/Method`.
    pub fn path(&self) -> &str {
        self.field(":path").unwrap_or_default()
    }

    /// Whether its messages come as they are, not compressed.
    pub fn is_plain(&self) -> bool {
        self.field("grpc-encoding").is_none_or(|encoding| encoding == "identity")
    }

    /// The answer to what is no call of gRPC.
    pub(crate) fn refusal(&self) -> Option<Vec<u8>> {
        let status = match (self.field(":method"), self.field("content-type")) {
            (Some("POST"), Some(kind)) if kind.as_bytes().starts_with(GRPC) => return None,
            (Some("POST"), _) => 415,
            _ => 405,
        };
        let mut block = Vec::new();
        put_status(status, &mut block);
        Some(block)
    }

    /// The only message of a call that [is plain](Call::is_plain).
    ///
    /// # Errors
    /// `Internal` for a request that is not one whole message, or not of this kind; `Cancelled` if the client gave the call up.
    pub async fn message<M: Message + Default>(mut self) -> Result<M, Status> {
        let whole = self.request.whole().await?;
        let malformed =
            |what: &str| Status::internal(format!("malformed request of {}: {what}", self.path()));
        let Some([is_compressed, len @ ..]) = whole.first_chunk::<PREFIX>() else {
            return Err(malformed("it has no message"));
        };
        if *is_compressed != 0 {
            return Err(malformed("a message that is compressed, in a call that is not"));
        }
        if whole.len() - PREFIX != u32::from_be_bytes(*len) as usize {
            return Err(malformed("its message is not of the length that it states"));
        }
        M::decode(whole.slice(PREFIX..)).map_err(|e| malformed(&e.to_string()))
    }

    /// As the services that tonic generates take it.
    ///
    /// # Errors
    /// `InvalidArgument` for fields that HTTP does not have.
    pub fn into_request(self) -> Result<Request<Body>, Status> {
        let mut headers = HeaderMap::with_capacity(self.fields.len());
        for Field { name, value } in self.fields.iter().filter(|f| !f.name.starts_with(b":")) {
            let (name, value) = (HeaderName::from_bytes(name), HeaderValue::from_maybe_shared(value.clone()));
            let (Ok(name), Ok(value)) = (name, value) else {
                return Err(Status::invalid_argument("a field of the call is none of HTTP"));
            };
            headers.append(name, value);
        }
        let path = self.path().parse().map_err(|_| Status::invalid_argument("the call's path is none"))?;
        let mut request = Request::new(Body::new(self.request));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = path;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// A request's bytes, as they come.
pub(crate) struct Incoming {
    connection: Arc<Connection>,
    stream: u32,
    /// All of it, where it had come before the call began.
    whole: Option<Bytes>,
    has_ended: bool,
}

impl Incoming {
    pub(crate) fn new(connection: Arc<Connection>, stream: u32, whole: Option<Bytes>) -> Incoming {
        Incoming { connection, stream, has_ended: whole.is_some(), whole }
    }

    async fn whole(&mut self) -> Result<Bytes, Status> {
        if let Some(whole) = self.whole.take() {
            return Ok(whole);
        }
        let part = poll_fn(|cx| self.poll_part(true, cx)).await;
        match part {
            Part::Bytes(bytes) => Ok(bytes),
            Part::End => Ok(Bytes::new()),
            Part::Gone => Err(gone()),
        }
    }

    fn poll_part(&self, is_wanted_whole: bool, cx: &mut Context<'_>) -> Poll<Part> {
        let part = self.connection.state.lock().next_part(self.stream, is_wanted_whole, cx.waker());
        part.map_or(Poll::Pending, Poll::Ready)
    }
}

fn gone() -> Status {
    Status::cancelled("the client gave the call up, or has gone")
}

impl http_body::Body for Incoming {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(whole) = self.whole.take() {
            return Poll::Ready(Some(Ok(Frame::data(whole))));
        }
        if self.has_ended {
            return Poll::Ready(None);
        }
        self.poll_part(false, cx).map(|part| match part {
            Part::Bytes(bytes) => Some(Ok(Frame::data(bytes))),
            Part::End => {
                self.has_ended = true;
                None
            }
            Part::Gone => {
                self.has_ended = true;
                Some(Err(gone()))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended && self.whole.is_none()
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incoming(stream {})", self.stream)
    }
}

/// What a call is answered.
#[derive(Debug)]
pub enum Answer {
    /// One message, gRPC's head before it; pieces that are large are written where they lie.
    Message(SmallVec<[Bytes; 2]>),
    Failure(Status),
    /// What a service answers that tonic has generated.
    Response(Response<Body>),
}

impl Answer {
    /// Hands the answer over to the connection, which may take its time over one that is streamed.
    pub(crate) async fn send(self, connection: &Arc<Connection>, stream: u32) {
        match self {
            Answer::Message(pieces) => {
                connection.state.lock().answer(stream, pieces);
                connection.flush();
            }
            Answer::Failure(status) => send_response(status.into_http(), connection, stream).await,
            Answer::Response(response) => send_response(response, connection, stream).await,
        }
    }
}

async fn send_response(response: Response<Body>, connection: &Arc<Connection>, stream: u32) {
    let (head, mut body) = response.into_parts();
    let mut block = Vec::new();
    put_status(head.status.as_u16(), &mut block);
    put_map(&head.headers, &mut block);
    let ends = body.is_end_stream();
    let begun = connection.state.lock().begin_answer(stream, &block, ends);
    if ends || !begun {
        return connection.flush();
    }
    let mut trailers = Vec::new();
    loop {
        // What is there already leaves with what is there next.
        let next = match body.frame().now_or_never() {
            Some(next) => next,
            None => {
                connection.flush();
                body.frame().await
            }
        };
        match next.map(|frame| frame.map(Frame::into_data)) {
            None => break,
            Some(Ok(Ok(bytes))) => {
                connection.state.lock().go_on(stream, bytes, None);
                if !may_go_on(connection, stream).await {
                    return;
                }
            }
            Some(Ok(Err(frame))) => {
                if let Some(map) = frame.trailers_ref() {
                    put_map(map, &mut trailers);
                }
            }
            Some(Err(status)) => {
                let mut map = HeaderMap::new();
                // A status that cannot be told leaves the call without one, which the client takes for a failure.
                let _ = status.add_header(&mut map);
                put_map(&map, &mut trailers);
                break;
            }
        }
    }
    connection.state.lock().go_on(stream, Bytes::new(), Some(Trailers::Block(trailers)));
    connection.flush();
}

/// Waits until an answer may go on; false if nobody wants it any more.
async fn may_go_on(connection: &Arc<Connection>, stream: u32) -> bool {
    poll_fn(|cx| {
        let may = |waker| connection.state.lock().may_go_on(stream, waker);
        let mut now = may(cx.waker());
        if now == Some(false) {
            connection.flush();
            now = may(cx.waker());
        }
        match now {
            Some(false) => Poll::Pending,
            now => Poll::Ready(now.is_some()),
        }
    })
    .await
}

fn put_map(map: &HeaderMap, block: &mut Vec<u8>) {
    for (name, value) in map {
        put_field(name.as_str().as_bytes(), value.as_bytes(), block);
    }
}
