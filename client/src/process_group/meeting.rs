//! The meeting of the processes that a launcher has started. Rank 0 listens at an address that all processes know; the
//! other processes send it the addresses at which they listen, and receive the addresses of all processes.

use super::Environment;
use super::process::bind_to;
use graph::Code;
use proto::Status;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;

/// The first word of a registration.
const GREETING: &str = "anabranch-group-1";
/// The first word of the answer with all addresses.
const READY: &str = "ready";
/// The first word of the answer when some processes have not registered in time; any other answer is the text of a
/// refusal.
const LATE: &str = "late";
/// Time after the deadline for which a process still waits for the answer of rank 0, which names the missing processes.
const ANSWER_GRACE: Duration = Duration::from_secs(2);
/// Longest time that rank 0 waits for the registration on a connection.
const LINE_DEADLINE: Duration = Duration::from_secs(2);
/// Maximum number of bytes of a registration, and of an answer for each process.
const MAX_LINE: u64 = 256;
/// Number of missing ranks that an error names.
const MAX_NAMED: usize = 20;
/// Pause between two attempts to connect to rank 0, or to accept a connection.
const PAUSE: Duration = Duration::from_millis(5);

/// A process that has registered with rank 0.
struct Registered {
    stream: TcpStream,
    address: String,
}

/// Meets the other processes. Returns a socket that holds the port of this process without listening at it, and the
/// addresses of all processes, by rank.
///
/// # Errors
/// `DeadlineExceeded` naming the ranks that have not registered; `InvalidArgument` for processes that disagree in their
/// number or have the same rank; `Unavailable` if rank 0 cannot listen.
pub(super) fn meet(environment: &Environment, deadline: Instant) -> Result<(TcpSocket, Vec<String>), Status> {
    if environment.size == 1 {
        let socket = reserve(Ipv4Addr::LOCALHOST.into())?;
        let address = address_of(&socket)?;
        return Ok((socket, vec![address]));
    }
    match environment.rank {
        0 => lead(environment, deadline),
        _ => register(environment, deadline),
    }
}

/// Waits for the registrations of all other processes, as rank 0, and sends each process the addresses of all.
fn lead(environment: &Environment, deadline: Instant) -> Result<(TcpSocket, Vec<String>), Status> {
    let Environment { size, host, port, .. } = environment;
    let failed = |e: io::Error| {
        let text = format!(
            "rank 0 cannot listen at port {port}, where the other ranks are to find it: {e}; ANABRANCH_PORT sets \
             another port"
        );
        Status::new(Code::Unavailable, text)
    };
    let meeting = TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).map_err(failed)?;
    meeting.set_nonblocking(true).map_err(failed)?;
    let mut others: Vec<Option<Registered>> = (1..*size).map(|_| None).collect();
    while others.iter().any(Option::is_none) {
        if Instant::now() >= deadline {
            let missing = missing(&others, environment);
            for other in others.iter_mut().flatten() {
                // An error is ignored, because the other process may have ended.
                let _ = writeln!(other.stream, "{LATE} {}", missing.message);
            }
            return Err(missing);
        }
        match meeting.accept() {
            Ok((stream, _)) => accept(stream, &mut others, *size)?,
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    let others: Vec<Registered> = others.into_iter().flatten().collect();
    let own = others.first().and_then(|other| other.stream.local_addr().ok());
    let own = own.ok_or_else(|| Status::new(Code::Unavailable, format!("the network of {host} is lost")))?;
    let socket = reserve(own.ip())?;
    let mut addresses = vec![address_of(&socket)?];
    addresses.extend(others.iter().map(|other| other.address.clone()));
    let line = format!("{READY} {}\n", addresses.join(" "));
    for (mut other, rank) in others.into_iter().zip(1..) {
        other.stream.write_all(line.as_bytes()).map_err(|e| {
            Status::new(Code::Unavailable, format!("rank {rank} at {} was lost: {e}", other.address))
        })?;
    }
    Ok((socket, addresses))
}

/// Reads a registration. A connection without a registration is closed.
///
/// # Errors
/// `InvalidArgument` for a rank that is taken, or another number of processes; the other process gets the text too.
fn accept(mut stream: TcpStream, others: &mut [Option<Registered>], size: usize) -> Result<(), Status> {
    let Some((rank, their_size, address)) = read_registration(&stream) else { return Ok(()) };
    let slot = rank.checked_sub(1).and_then(|index| others.get_mut(index));
    let refusal = match slot {
        _ if their_size != size => {
            format!("rank {rank} at {address} expects {their_size} processes, rank 0 {size}")
        }
        None => format!("rank {rank} at {address} is no rank of {size} processes, or that of rank 0"),
        Some(Some(other)) => format!("two processes have rank {rank}: {} and {address}", other.address),
        Some(slot) => {
            *slot = Some(Registered { stream, address });
            return Ok(());
        }
    };
    // An error is ignored, because the other process may have ended.
    let _ = writeln!(stream, "{refusal}");
    Err(Status::invalid(refusal))
}

/// Returns the rank, the number of processes and the address in a registration; `None` if it is malformed.
fn read_registration(stream: &TcpStream) -> Option<(usize, usize, String)> {
    stream.set_nonblocking(false).ok()?;
    let line = read_line(stream, LINE_DEADLINE, MAX_LINE).ok()?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let [GREETING, size, rank, address] = words[..] else { return None };
    Some((rank.parse().ok()?, size.parse().ok()?, address.parse::<SocketAddr>().ok()?.to_string()))
}

/// Registers with rank 0, and waits for the addresses of all processes.
fn register(environment: &Environment, deadline: Instant) -> Result<(TcpSocket, Vec<String>), Status> {
    let Environment { rank, size, host, port } = environment;
    let mut stream = connect(environment, deadline)?;
    let lost = |e: io::Error| {
        let code = match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Code::DeadlineExceeded,
            _ => Code::Unavailable,
        };
        Status::new(code, format!("rank 0 at {host}:{port} has not answered rank {rank}: {e}"))
    };
    let socket = reserve(stream.local_addr().map_err(lost)?.ip())?;
    let own = address_of(&socket)?;
    writeln!(stream, "{GREETING} {size} {rank} {own}").map_err(lost)?;
    let patience = deadline.saturating_duration_since(Instant::now()) + ANSWER_GRACE;
    let line = read_line(&stream, patience, MAX_LINE * *size as u64).map_err(lost)?;
    if let Some(late) = line.trim().strip_prefix(LATE) {
        return Err(Status::new(Code::DeadlineExceeded, late.trim().to_owned()));
    }
    let refused = || Status::invalid(line.trim().to_owned());
    let addresses = line.trim().strip_prefix(READY).ok_or_else(refused)?;
    let addresses: Vec<String> = addresses.split_whitespace().map(str::to_owned).collect();
    if addresses.len() != *size || addresses.get(*rank) != Some(&own) {
        let text = format!("rank 0 at {host}:{port} has sent other addresses than those of {size} processes");
        return Err(Status::new(Code::Internal, text));
    }
    Ok((socket, addresses))
}

/// Connects to rank 0, which may not listen yet.
fn connect(environment: &Environment, deadline: Instant) -> Result<TcpStream, Status> {
    let Environment { rank, host, port, .. } = environment;
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(PAUSE);
        let attempt = (host.as_str(), *port).to_socket_addrs().and_then(|mut found| {
            let first = found.next().ok_or_else(|| io::Error::other("the host has no address"))?;
            TcpStream::connect_timeout(&first, left)
        });
        match attempt {
            Ok(stream) => return Ok(stream),
            Err(e) if Instant::now() >= deadline => {
                let text = format!("rank {rank} cannot reach rank 0 at {host}:{port}: {e}");
                return Err(Status::new(Code::DeadlineExceeded, text));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn read_line(stream: &TcpStream, patience: Duration, limit: u64) -> io::Result<String> {
    stream.set_read_timeout(Some(patience))?;
    let mut line = String::new();
    BufReader::new(stream.take(limit)).read_line(&mut line)?;
    match line.ends_with('\n') {
        true => Ok(line),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Binds a free port of this machine. It can be bound again, by this process or another one, as long as nothing listens
/// at it.
fn reserve(host: IpAddr) -> Result<TcpSocket, Status> {
    bind_to((host, 0).into())
        .map_err(|e| Status::new(Code::Unavailable, format!("no port of {host} is free: {e}")))
}

fn address_of(socket: &TcpSocket) -> Result<String, Status> {
    let address = socket.local_addr();
    let address =
        address.map_err(|e| Status::new(Code::Internal, format!("a socket has no address: {e}")))?;
    Ok(address.to_string())
}

fn missing(others: &[Option<Registered>], environment: &Environment) -> Status {
    let ranks = others.iter().zip(1usize..).filter(|(other, _)| other.is_none());
    let mut names: Vec<String> = ranks.map(|(_, rank)| rank.to_string()).collect();
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let Environment { size, port, .. } = environment;
    let mut text = format!(
        "of {size} processes, these ranks did not come to rank 0 at port {port} in time: {}",
        names.join(", ")
    );
    if more > 0 {
        text.push_str(&format!(" and {more} others"));
    }
    Status::new(Code::DeadlineExceeded, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Test = Result<(), Box<dyn std::error::Error>>;

    fn environment(rank: usize, size: usize, port: u16) -> Environment {
        Environment { rank, size, host: "127.0.0.1".to_owned(), port }
    }

    fn free_port() -> io::Result<u16> {
        Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
    }

    fn after(patience: Duration) -> Instant {
        Instant::now() + patience
    }

    #[test]
    fn all_ranks_get_the_addresses_of_all_whoever_comes_first() -> Test {
        let port = free_port()?;
        let deadline = after(Duration::from_secs(20));
        let met = std::thread::scope(|scope| {
            let ranks = [2, 1, 0].map(|rank| {
                std::thread::sleep(Duration::from_millis(20));
                scope.spawn(move || meet(&environment(rank, 3, port), deadline))
            });
            ranks.map(|rank| rank.join().unwrap_or_else(|_| Err(Status::invalid("a rank panicked"))))
        });
        let [two, one, zero] = met;
        let (two, one, zero) = (two?, one?, zero?);
        assert_eq!(zero.1, [&zero, &one, &two].map(|(socket, _)| address_of(socket).unwrap_or_default()));
        assert!(one.1 == zero.1 && two.1 == zero.1);
        Ok(())
    }

    #[test]
    fn ranks_that_do_not_come_are_named() -> Test {
        let port = free_port()?;
        // A connection without a valid registration is ignored.
        let stray = std::thread::spawn(move || -> io::Result<()> {
            while TcpStream::connect(("127.0.0.1", port))?.write_all(b"GET /\n").is_err() {}
            Ok(())
        });
        let late = meet(&environment(0, 3, port), after(Duration::from_millis(100))).err();
        drop(stray.join());
        let late = late.ok_or("nobody came, and the meeting succeeded")?;
        assert_eq!(late.code, Code::DeadlineExceeded);
        assert!(late.message.ends_with(": 1, 2"), "{late}");
        let alone = meet(&environment(1, 2, free_port()?), after(Duration::from_millis(50))).err();
        assert!(alone.is_some_and(|e| e.code == Code::DeadlineExceeded && e.message.contains("rank 0 at")));
        Ok(())
    }

    #[test]
    fn those_who_have_come_get_the_names_of_the_missing() -> Test {
        let port = free_port()?;
        let deadline = after(Duration::from_millis(300));
        let (lead, other) = std::thread::scope(|scope| {
            let lead = scope.spawn(move || meet(&environment(0, 4, port), deadline).err());
            let other = meet(&environment(2, 4, port), deadline).err();
            (lead.join().unwrap_or_default(), other)
        });
        for error in [lead, other] {
            let error = error.ok_or("no error")?;
            assert_eq!(error.code, Code::DeadlineExceeded);
            assert!(error.message.ends_with("in time: 1, 3"), "{error}");
        }
        Ok(())
    }

    #[test]
    fn a_port_is_held_for_a_second_socket_that_listens() -> Test {
        let held = reserve(Ipv4Addr::LOCALHOST.into())?;
        let address: SocketAddr = address_of(&held)?.parse()?;
        assert!(TcpStream::connect(address).is_err());
        for _ in 0..2 {
            let listener = TcpListener::bind(address)?;
            TcpStream::connect(address)?;
            drop(listener);
        }
        Ok(())
    }

    #[test]
    fn processes_that_disagree_are_refused() -> Test {
        let port = free_port()?;
        let deadline = after(Duration::from_secs(20));
        let (lead, other) = std::thread::scope(|scope| {
            let lead = scope.spawn(move || meet(&environment(0, 2, port), deadline).err());
            let other = meet(&environment(1, 3, port), deadline).err();
            (lead.join().unwrap_or_default(), other)
        });
        for error in [lead, other] {
            let text = error.ok_or("no error")?.message;
            assert!(
                text.starts_with("rank 1 at 127.0.0.1:") && text.ends_with("expects 3 processes, rank 0 2")
            );
        }
        Ok(())
    }
}
