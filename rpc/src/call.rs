//! The call that a service receives, and the answers that it can return.

use crate::connection::Connection;
use crate::hpack::{Field, GRPC, put_field, put_status};
use crate::state::RequestPart;
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

/// One call of a client: its header fields and its request.
#[derive(Debug)]
pub struct Call {
    fields: Vec<Field>,
    request: Incoming,
}

impl Call {
    pub(crate) fn new(fields: Vec<Field>, request: Incoming) -> Call {
        Call { fields, request }
    }

    /// Returns the value of a header field that is valid UTF-8; the first value if the field occurs several
    /// times.
    pub fn field(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.value(name)?).ok()
    }

    /// Returns the bytes of a header field's value. Clones of the bytes share the field's memory and may outlive the
    /// call.
    pub(crate) fn value(&self, name: &str) -> Option<&Bytes> {
        let field = self.fields.iter().find(|field| field.name == name.as_bytes())?;
        Some(&field.value)
    }

    /// Returns the path of the call, `/package.Service/Method`.
    pub fn path(&self) -> &str {
        self.field(":path").unwrap_or_default()
    }

    /// Returns whether the messages of the call are uncompressed.
    pub fn is_plain(&self) -> bool {
        self.field("grpc-encoding").is_none_or(|encoding| encoding == "identity")
    }

    /// Returns `None` for a gRPC call; for any other request, the header block that refuses it with HTTP status 405 or
    /// 415.
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

    /// Reads and decodes the only message of a call that [is plain](Call::is_plain).
    ///
    /// # Errors
    /// `Internal` for a request that is not one whole message of type `M`; `Cancelled` if the client
    /// cancelled the call.
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

    /// Converts the call into the request type that tonic's generated services accept.
    ///
    /// # Errors
    /// `InvalidArgument` for header fields or a path that HTTP does not allow.
    pub fn into_request(self) -> Result<Request<Body>, Status> {
        let mut headers = HeaderMap::with_capacity(self.fields.len());
        for Field { name, value } in self.fields.iter().filter(|f| !f.name.starts_with(b":")) {
            let (name, value) = (HeaderName::from_bytes(name), HeaderValue::from_maybe_shared(value.clone()));
            let (Ok(name), Ok(value)) = (name, value) else {
                return Err(Status::invalid_argument("a header field of the call is invalid in HTTP"));
            };
            headers.append(name, value);
        }
        let path = self.path().parse().map_err(|_| Status::invalid_argument("the call's path is invalid"))?;
        let mut request = Request::new(Body::new(self.request));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = path;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// The body of a request, which the service can read in parts while it arrives.
pub(crate) struct Incoming {
    connection: Arc<Connection>,
    stream: u32,
    /// The complete body, if it had arrived before the call began.
    whole: Option<Bytes>,
    has_ended: bool,
}

impl Incoming {
    pub(crate) fn new(connection: Arc<Connection>, stream: u32, whole: Option<Bytes>) -> Incoming {
        Incoming { connection, stream, has_ended: whole.is_some(), whole }
    }

    /// Waits for the complete body.
    async fn whole(&mut self) -> Result<Bytes, Status> {
        if let Some(whole) = self.whole.take() {
            return Ok(whole);
        }
        let part = poll_fn(|cx| self.poll_part(true, cx)).await;
        match part {
            RequestPart::Bytes(bytes) => Ok(bytes),
            RequestPart::End => Ok(Bytes::new()),
            RequestPart::Gone => Err(cancelled()),
        }
    }

    fn poll_part(&self, is_read_whole: bool, cx: &mut Context<'_>) -> Poll<RequestPart> {
        let part = self.connection.state.lock().poll_part(self.stream, is_read_whole, cx.waker());
        part.map_or(Poll::Pending, Poll::Ready)
    }
}

fn cancelled() -> Status {
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
            RequestPart::Bytes(bytes) => Some(Ok(Frame::data(bytes))),
            RequestPart::End => {
                self.has_ended = true;
                None
            }
            RequestPart::Gone => {
                self.has_ended = true;
                Some(Err(cancelled()))
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

/// A service's answer to a call.
#[derive(Debug)]
pub enum Answer {
    /// One message that begins with gRPC's message header, in pieces; large pieces are written without a
    /// copy.
    Message(SmallVec<[Bytes; 2]>),
    Failure(Status),
    /// A response that a service generated by tonic returns.
    Response(Response<Body>),
}

impl Answer {
    /// Passes the answer to the connection. For a streamed response, waits for the response's frames and for the
    /// client's flow-control windows.
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
    let is_open = connection.state.lock().begin_answer(stream, &block, ends);
    if ends || !is_open {
        return connection.flush();
    }
    let mut trailers = Vec::new();
    loop {
        // A body frame that is ready at once is sent in one write together with the frame before it.
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
                connection.state.lock().continue_answer(stream, bytes, None);
                if !wait_for_capacity(connection, stream).await {
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
                // If the status cannot be encoded, the answer ends without a status, which clients treat as a
                // failure.
                let _ = status.add_header(&mut map);
                put_map(&map, &mut trailers);
                break;
            }
        }
    }
    connection.state.lock().continue_answer(stream, Bytes::new(), Some(Trailers::Block(trailers)));
    connection.flush();
}

/// Waits until a streamed answer has so few pending bytes that more can be added. Returns false if the client has ended
/// the stream.
async fn wait_for_capacity(connection: &Arc<Connection>, stream: u32) -> bool {
    poll_fn(|cx| {
        let poll = |waker| connection.state.lock().poll_capacity(stream, waker);
        let mut now = poll(cx.waker());
        if now == Some(false) {
            connection.flush();
            now = poll(cx.waker());
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
