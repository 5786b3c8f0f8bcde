//! The handshake by which two processes open a link. The sending process requests an invitation from the other over
//! gRPC (`GetStatus` with metadata [`INVITATION_REQUEST_KEY`]). A process of this implementation answers with an
//! [`Invitation`] in metadata [`INVITATION_KEY`], a foreign process without one. Each connection then begins with a
//! [`Hello`] that contains the invitation's token. This module uses no sockets.

use super::Transport;
use super::frame::Malformed;
use std::net::SocketAddr;

/// Metadata key of the request for an invitation.
pub(crate) const INVITATION_REQUEST_KEY: &str = "anabranch-meet";
/// Metadata key of the invitation in the answer.
pub(crate) const INVITATION_KEY: &str = "anabranch-invitation";
/// Metadata key of the kind of fabric that the inviting process has. Processes of earlier versions neither send nor
/// read it.
pub(crate) const FABRIC_KEY: &str = "anabranch-fabric";

/// The version of the protocol of links, which must be equal at both ends.
const VERSION: &str = "6";

/// An invitation to open a link: the addresses at which a process accepts links, and the token that it
/// requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invitation {
    /// A random number that identifies the process.
    pub(super) process: u64,
    /// A random number that identifies the worker, because a process may have several workers.
    pub(super) worker: u64,
    pub(super) token: u128,
    /// The boot id of the machine, which differs after each start of the machine.
    pub(super) host: String,
    /// The name of the abstract Unix socket on which the process accepts links, if there is one.
    pub(super) unix: Option<String>,
    pub(super) tcp: Option<SocketAddr>,
}

impl Invitation {
    pub(super) fn to_text(&self) -> String {
        let unix = self.unix.as_deref().unwrap_or("-");
        let tcp = self.tcp.map_or("-".to_owned(), |a| a.to_string());
        let Invitation { process, worker, token, host, .. } = self;
        format!("{VERSION} {process:016x} {worker:016x} {token:032x} {host} {unix} {tcp}")
    }

    /// Parses an invitation; `None` for another protocol version.
    pub(super) fn parse(text: &str) -> Option<Invitation> {
        let parts: Vec<&str> = text.split(' ').collect();
        let [VERSION, process, worker, token, host, unix, tcp] = parts[..] else { return None };
        Some(Invitation {
            process: u64::from_str_radix(process, 16).ok()?,
            worker: u64::from_str_radix(worker, 16).ok()?,
            token: u128::from_str_radix(token, 16).ok()?,
            host: host.to_owned(),
            unix: (unix != "-").then(|| unix.to_owned()),
            tcp: if tcp == "-" { None } else { Some(tcp.parse().ok()?) },
        })
    }

    /// Returns the addresses that `transport` allows a process on the machine with boot id `host` to connect
    /// to, the fastest first.
    pub(super) fn endpoints(&self, transport: Transport, host: &str) -> Vec<Endpoint> {
        let is_here = !host.is_empty() && self.host == host;
        let unix = self.unix.clone().filter(|_| is_here && transport.shares_memory()).map(Endpoint::Unix);
        let tcp =
            self.tcp.filter(|_| matches!(transport, Transport::Auto | Transport::Tcp)).map(Endpoint::Tcp);
        unix.into_iter().chain(tcp).collect()
    }
}

/// An address at which a process accepts links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Unix(String),
    Tcp(SocketAddr),
}

/// The first message on a connection of a link, sent by the process that opens the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The number of the accepting process, from its invitation.
    pub(super) process: u64,
    pub(super) token: u128,
    /// The random number of the link, equal for all its connections.
    pub(super) link: u64,
    pub(super) role: Role,
}

/// The role of a connection in its link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A connection for parts of large tensors.
    Secondary,
    /// The connection for all frames and small payloads; `secondaries` is the number of the link's secondary
    /// connections, which were opened before.
    Main { secondaries: u16, caller: Caller },
}

/// The worker that opens a link and sends tensors over it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Caller {
    /// The worker's task and address, for error messages.
    pub(super) name: String,
    /// The random number that identifies the worker, as in its invitations.
    pub(super) worker: u64,
    /// The incarnations of the worker's devices.
    pub(super) incarnations: Vec<u64>,
    /// The tasks to which the worker's cluster spec gives the accepting end's address. The worker pushes the
    /// values for these tasks.
    pub(super) receivers: Vec<String>,
    /// The text by which the accepting end connects to this end's fabric; only sent to a process that has announced a
    /// fabric of the same kind.
    pub(super) fabric: Option<String>,
}

/// The beginning of the line with the fabric's text. Lines with receivers begin with a slash.
const FABRIC_LINE: &str = "fabric ";

const MAGIC: [u8; 8] = *b"anabrnch";
/// The bytes that answer the [`Hello`] of an accepted connection.
pub(super) const WELCOME: [u8; 8] = *b"welcome\n";
/// Length of the fixed part of a [`Hello`], bytes: the magic number, the process number, the token, the
/// link's number and the length of the variable part.
pub(super) const HELLO_LEN: usize = 8 + 8 + 16 + 8 + 4;
/// Largest length of the variable part of a [`Hello`], bytes.
const MAX_REST: usize = 64 << 10;

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        if let Role::Main { secondaries, caller } = &self.role {
            rest.extend_from_slice(&secondaries.to_le_bytes());
            rest.extend_from_slice(&caller.worker.to_le_bytes());
            rest.extend_from_slice(&(caller.incarnations.len() as u32).to_le_bytes());
            caller.incarnations.iter().for_each(|i| rest.extend_from_slice(&i.to_le_bytes()));
            rest.extend_from_slice(caller.name.as_bytes());
            for receiver in &caller.receivers {
                rest.push(b'\n');
                rest.extend_from_slice(receiver.as_bytes());
            }
            if let Some(text) = &caller.fabric {
                rest.push(b'\n');
                rest.extend_from_slice(FABRIC_LINE.as_bytes());
                rest.extend_from_slice(text.as_bytes());
            }
        }
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.process.to_le_bytes());
        out.extend_from_slice(&self.token.to_le_bytes());
        out.extend_from_slice(&self.link.to_le_bytes());
        out.extend_from_slice(&(rest.len() as u32).to_le_bytes());
        out.extend_from_slice(&rest);
        out
    }

    /// Checks the fixed part of a [`Hello`]. Returns the link's number and the length of the variable part.
    ///
    /// # Errors
    /// For a connection without this process's number and token.
    pub(super) fn check(
        first: &[u8; HELLO_LEN],
        process: u64,
        token: u128,
    ) -> Result<(u64, usize), Malformed> {
        let mut at = 0;
        let mut take = |len: usize| {
            at += len;
            &first[at - len..at]
        };
        if take(8) != MAGIC {
            return Err(Malformed("greeting"));
        }
        if take(8) != process.to_le_bytes() {
            return Err(Malformed("greeting: it is meant for another process"));
        }
        // The comparison takes the same time wherever the tokens differ, so that its duration reveals no part
        // of the token.
        let differs = take(16).iter().zip(token.to_le_bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        if differs != 0 {
            return Err(Malformed("greeting: the token is wrong"));
        }
        let mut link = [0; 8];
        link.copy_from_slice(take(8));
        let mut rest = [0; 4];
        rest.copy_from_slice(take(4));
        match u32::from_le_bytes(rest) as usize {
            rest if rest <= MAX_REST => Ok((u64::from_le_bytes(link), rest)),
            _ => Err(Malformed("greeting: it is too long")),
        }
    }

    /// Decodes the variable part of a [`Hello`], which is empty for a secondary connection.
    pub(super) fn role(rest: &[u8]) -> Result<Role, Malformed> {
        let malformed = Malformed("greeting: it ends early");
        if rest.is_empty() {
            return Ok(Role::Secondary);
        }
        let (&secondaries, rest) = rest.split_first_chunk().ok_or(malformed)?;
        let (&worker, rest) = rest.split_first_chunk().ok_or(malformed)?;
        let (&count, mut rest) = rest.split_first_chunk().ok_or(malformed)?;
        let mut incarnations = Vec::new();
        for _ in 0..u32::from_le_bytes(count) {
            let (&incarnation, others) = rest.split_first_chunk().ok_or(malformed)?;
            incarnations.push(u64::from_le_bytes(incarnation));
            rest = others;
        }
        let mut names = std::str::from_utf8(rest).map_err(|_| malformed)?.split('\n').map(str::to_owned);
        let name = names.next().unwrap_or_default();
        let worker = u64::from_le_bytes(worker);
        let mut receivers: Vec<String> = names.collect();
        let fabric = receivers.iter().find_map(|line| line.strip_prefix(FABRIC_LINE)).map(str::to_owned);
        receivers.retain(|line| !line.starts_with(FABRIC_LINE));
        let caller = Caller { name, worker, incarnations, receivers, fabric };
        Ok(Role::Main { secondaries: u16::from_le_bytes(secondaries), caller })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invitation() -> Invitation {
        Invitation {
            process: 7,
            worker: 9,
            token: 1 << 100,
            host: "boot-id".into(),
            unix: Some("anabranch-1-2".into()),
            tcp: "127.0.0.1:4000".parse().ok(),
        }
    }

    #[test]
    fn invitations_survive_encoding() {
        let one = invitation();
        assert_eq!(Invitation::parse(&one.to_text()), Some(one.clone()));
        let none = Invitation { unix: None, tcp: None, ..one.clone() };
        assert_eq!(Invitation::parse(&none.to_text()), Some(none));
        assert_eq!(Invitation::parse(""), None);
        assert_eq!(Invitation::parse(&one.to_text().replacen(VERSION, "0", 1)), None, "another version");
        assert_eq!(Invitation::parse(&one.to_text().replace("4000", "x")), None);
    }

    #[test]
    fn endpoints_are_ordered_and_respect_the_transport() {
        let one = invitation();
        let unix = || Endpoint::Unix("anabranch-1-2".into());
        let tcp = || one.tcp.map(Endpoint::Tcp).into_iter();
        let all: Vec<Endpoint> = std::iter::once(unix()).chain(tcp()).collect();
        assert_eq!(one.endpoints(Transport::Auto, "boot-id"), all);
        assert_eq!(one.endpoints(Transport::Auto, "elsewhere"), tcp().collect::<Vec<_>>());
        assert_eq!(one.endpoints(Transport::Auto, ""), tcp().collect::<Vec<_>>());
        assert_eq!(one.endpoints(Transport::Shm, "boot-id"), [unix()]);
        assert_eq!(one.endpoints(Transport::Shm, "elsewhere"), []);
        assert_eq!(one.endpoints(Transport::Tcp, "boot-id"), tcp().collect::<Vec<_>>());
        assert_eq!(one.endpoints(Transport::Grpc, "boot-id"), []);
    }

    #[test]
    fn hellos_without_the_token_are_refused() -> Result<(), Box<dyn std::error::Error>> {
        let receivers = vec!["/job:w/replica:0/task:0".into(), "/job:x/replica:0/task:0".into()];
        let name = "/job:w/replica:0/task:1 at localhost:1".into();
        let caller = Caller { name, worker: 9, incarnations: vec![1, u64::MAX], receivers, fabric: None };
        let with_fabric = Caller { fabric: Some("qp 7".into()), ..caller.clone() };
        let main = |caller| Role::Main { secondaries: 3, caller };
        for role in [Role::Secondary, main(caller), main(with_fabric)] {
            let bytes = Hello { process: 7, token: 1 << 100, link: 5, role: role.clone() }.encode();
            let (first, rest) = bytes.split_first_chunk().ok_or("short")?;
            assert_eq!(Hello::check(first, 7, 1 << 100)?, (5, rest.len()));
            assert_eq!(Hello::role(rest)?, role);
            assert!(Hello::check(first, 8, 1 << 100).is_err());
            assert!(Hello::check(first, 7, 1 << 99).is_err());
            for cut in 1..rest.len().min(30) {
                assert!(Hello::role(&rest[..cut]).is_err(), "{cut}");
            }
        }
        assert!(Hello::check(&[b'x'; HELLO_LEN], 7, 1 << 100).is_err());
        Ok(())
    }
}
