//! Tests of transfers over links: each transport delivers the same values and failures, and leaves no state
//! behind.

use crate::cluster::*;
use anabranch_worker::Transport;
use bytes::Bytes;
use graph::{Code, DType, Graph, Shape, TaskName, Tensor};
use proto::pb;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

const LINKED: [Transport; 3] = [Transport::Auto, Transport::Shm, Transport::Tcp];

/// Returns a graph in which `p` is fed at the first task, sent to the second and fetched as `y` at the first.
fn round_trip_graph(dtype: DType) -> Test<Graph> {
    Ok(Graph::from_text(&format!(
        "p = Placeholder[dtype={dtype}, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
         y = Identity[T={dtype}](p) @\"/job:w/replica:0/task:1/device:CPU:0\"\n"
    ))?)
}

/// Waits until a condition holds, which `name` describes in the error after [`LONG`].
fn until(name: &str, mut is_so: impl FnMut() -> bool) -> Test {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        if Instant::now() > deadline {
            return Err(format!("{name}: not within {LONG:?}").into());
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    Ok(())
}

/// Starts two tasks with a link in each direction, and a session over them.
async fn linked(transport: Transport) -> Test<(Vec<Task>, Session)> {
    let tasks = cluster(2, |config| config.transport = transport)?;
    let session = Session::mixed(&tasks).await?;
    let registered = session.register(&round_trip_graph(DType::Float)?, &["p"], &["y"], &[]).await?;
    // The links are opened before the first step.
    until("links", || tasks.iter().all(|t| t.worker.links() == (1, 1)))?;
    session.run(&registered, 1, &[("p:0", Tensor::scalar(1.0f32))], &["y:0"]).await?;
    Ok((tasks, session))
}

fn wide(len: usize) -> Test<Tensor> {
    let values: Vec<i32> = (0..len as i32).collect();
    Ok(Tensor::vector(&values)?)
}

fn samples() -> Test<Vec<Tensor>> {
    Ok(vec![
        Tensor::scalar(1.5f32),
        Tensor::zeros(DType::Float, Shape::new(&[0, 3])?)?,
        Tensor::bools(&[true, false], Shape::new(&[2, 1])?)?,
        wide(1000)?,
        wide(20_000)?,
        wide(200_000)?,
        // The next two tensors are sent in several parts over TCP, and the second exceeds the push budget.
        wide(3_000_001)?,
        wide(20_000_000)?,
        Tensor::strings(
            vec![Bytes::new(), "a string".into(), vec![0u8; 100_000].into()],
            Shape::new(&[3, 1])?,
        )?,
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_survive_transfers_by_every_transport() -> Test {
    for transport in LINKED {
        let (tasks, session) = linked(transport).await?;
        let mut step = 1;
        for value in samples()? {
            let registered = session.register(&round_trip_graph(value.dtype())?, &["p"], &["y"], &[]).await?;
            for _ in 0..3 {
                step += 1;
                let back = session.run(&registered, step, &[("p:0", value.clone())], &["y:0"]).await?;
                assert!(back == [value.clone()], "{transport}: {} of {}", value.dtype(), value.shape());
            }
        }
        assert!(tasks.iter().all(|t| t.worker.links() == (1, 1)), "{transport}: a link broke");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_part_notifies_its_receivers() -> Test {
    let (first, second) = (TaskName::new("w", 0), TaskName::new("w", 1));
    for transport in LINKED {
        let (tasks, session) = linked(transport).await?;
        let registered = session.register(&round_trip_graph(DType::Float)?, &["p"], &["y"], &[]).await?;
        for (step, waits_already) in [(10, true), (11, false)] {
            // The first task's part waits, because its placeholder is not fed.
            let (link, run) =
                (session.links[&first].clone(), session.part(&registered, &first, step, &[], &[]));
            let let_go = tokio::spawn(async move { link.run_graph(run).await });
            let (link, run) =
                (session.links[&second].clone(), session.part(&registered, &second, step, &[], &[]));
            let waiting = async move { link.run_graph(run).await };
            until("the first part", || tasks[0].worker.is_running(step))?;
            let failed = if waits_already {
                let waiting = tokio::spawn(waiting);
                until("the second part", || tasks[1].worker.is_running(step))?;
                let_go.abort();
                tokio::time::timeout(LONG, waiting).await??
            } else {
                let_go.abort();
                tokio::time::timeout(LONG, waiting).await?
            };
            let failed = failed.err().ok_or("it went on")?;
            assert_eq!((failed.code, failed.derived), (Code::Cancelled, true), "{transport}: {failed}");
            assert!(failed.message.contains(&format!("Step {step} was cancelled")), "{transport}: {failed}");
        }
        assert!(tasks.iter().all(|t| t.worker.links() == (1, 1)), "{transport}: a link broke");
        let fed = Tensor::scalar(2.0f32);
        let back = session.run(&registered, 12, &[("p:0", fed.clone())], &["y:0"]).await?;
        assert_eq!(back, [fed]);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tensors_within_a_process_are_not_copied() -> Test {
    let (_tasks, session) = linked(Transport::Auto).await?;
    let registered = session.register(&round_trip_graph(DType::Int32)?, &["p"], &["y"], &[]).await?;
    for (step, len) in (2..).zip([100, 1_000_000]) {
        let value = wide(len)?;
        let back = session.run(&registered, step, &[("p:0", value.clone())], &["y:0"]).await?;
        assert_eq!(back[0].bytes()?.as_ptr(), value.bytes()?.as_ptr(), "{len} elements were copied");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn borrowed_tensors_keep_their_values_after_the_link_has_ended() -> Test {
    let (mut tasks, session) = linked(Transport::Shm).await?;
    let (first, second) = (TaskName::new("w", 0), TaskName::new("w", 1));
    let graph = Graph::from_text(
        "v = VariableV2[dtype=int32, shape=<1000000>] @\"/job:w/replica:0/task:1/device:CPU:0\"\n\
         p = Placeholder[dtype=int32, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
         init = Assign[T=int32](v, p) @\"/job:w/replica:0/task:1/device:CPU:0\"\n\
         more = AssignAdd[T=int32](v, v) @\"/job:w/replica:0/task:1/device:CPU:0\"\n\
         y = Identity[T=int32](v) @\"/job:w/replica:0/task:1/device:CPU:0\"\n",
    )?;
    let init = session.register(&graph, &["p"], &[], &["init"]).await?;
    let more = session.register(&graph, &[], &[], &["more"]).await?;
    let read = session.register(&graph, &[], &["y"], &[]).await?;
    let ones = Tensor::full(1i32, Shape::new(&[1_000_000])?)?;
    session.run(&init, 10, &[("p:0", ones)], &[]).await?;
    // The addition gives the variable memory that it does not share with the fed tensor.
    session.run(&more, 11, &[], &[]).await?;
    let borrowed = session.run(&read, 12, &[], &["y:0"]).await?;
    let run_more = |step| session.links[&second].run_graph(session.part(&more, &second, step, &[], &[]));
    until("a loan", || tasks[1].worker.links() == (1, 1))?;
    session.links[&first].cleanup_graph(12).await?;
    // The borrower's worker still runs, but receives no more frames.
    tasks[0].worker.close_links();
    until("the link's end", || tasks[1].worker.links() == (0, 0))?;
    for step in 20..24 {
        run_more(step).await?;
    }
    assert!(borrowed[0].values::<i32>()?.iter().all(|&v| v == 2), "the value has changed");
    drop(tasks.pop());
    assert!(borrowed[0].values::<i32>()?.iter().all(|&v| v == 2), "the memory has gone");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_links_tensors_are_fetched() -> Test {
    // A single task without links prevents all links of the cluster.
    let tasks = cluster(2, |config| {
        if config.task.task == 1 {
            config.transport = Transport::Grpc;
        }
    })?;
    let session = Session::mixed(&tasks).await?;
    let registered = session.register(&round_trip_graph(DType::Int32)?, &["p"], &["y"], &[]).await?;
    let value = wide(300_000)?;
    for step in 1..20 {
        let back = session.run(&registered, step, &[("p:0", value.clone())], &["y:0"]).await?;
        assert!(back == [value.clone()]);
    }
    assert!(tasks.iter().all(|t| t.worker.links() == (0, 0)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_step_may_transfer_more_than_the_budget() -> Test {
    for transport in LINKED {
        let (_tasks, session) = linked(transport).await?;
        let names: Vec<String> = (0..8).map(|i| format!("p{i}")).collect();
        let text: String = (0..8)
            .map(|i| {
                format!(
                    "p{i} = Placeholder[dtype=int32, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
                     y{i} = Identity[T=int32](p{i}) @\"/job:w/replica:0/task:1/device:CPU:0\"\n"
                )
            })
            .collect();
        let (feeds, fetches): (Vec<_>, Vec<_>) =
            (0..8).map(|i| (format!("p{i}:0"), format!("y{i}:0"))).unzip();
        let fetched: Vec<String> = (0..8).map(|i| format!("y{i}")).collect();
        let registered = session
            .register(
                &Graph::from_text(&text)?,
                &names.iter().map(String::as_str).collect::<Vec<_>>(),
                &fetched.iter().map(String::as_str).collect::<Vec<_>>(),
                &[],
            )
            .await?;
        let value = wide(6_000_000)?;
        let fed: Vec<_> = feeds.iter().map(|f| (f.as_str(), value.clone())).collect();
        let fetches: Vec<_> = fetches.iter().map(String::as_str).collect();
        for step in 2..5 {
            let back = session.run(&registered, step, &fed, &fetches).await?;
            assert!(back.len() == 8 && back.iter().all(|b| *b == value), "{transport}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn borrowed_tensors_keep_their_values_while_the_variable_changes() -> Test {
    let (_tasks, session) = linked(Transport::Shm).await?;
    let graph = Graph::from_text(
        "v = VariableV2[dtype=int32, shape=<1000000>] @\"/job:w/replica:0/task:1/device:CPU:0\"\n\
         p = Placeholder[dtype=int32, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
         init = Assign[T=int32](v, p) @\"/job:w/replica:0/task:1/device:CPU:0\"\n\
         more = AssignAdd[T=int32](v, p) @\"/job:w/replica:0/task:1/device:CPU:0\"\n\
         y = Identity[T=int32](v) @\"/job:w/replica:0/task:1/device:CPU:0\"\n",
    )?;
    let ones = Tensor::full(1i32, Shape::new(&[1_000_000])?)?;
    let init = session.register(&graph, &["p"], &[], &["init"]).await?;
    let more = session.register(&graph, &["p"], &[], &["more"]).await?;
    let read = session.register(&graph, &[], &["y"], &[]).await?;
    session.run(&init, 10, &[("p:0", ones.clone())], &[]).await?;
    let mut borrowed = Vec::new();
    for i in 0..10 {
        borrowed.extend(session.run(&read, 20 + 2 * i, &[], &["y:0"]).await?);
        session.run(&more, 21 + 2 * i, &[("p:0", ones.clone())], &[]).await?;
    }
    for (i, tensor) in (1..).zip(&borrowed) {
        assert!(tensor.values::<i32>()?.iter().all(|&v| v == i), "the value of round {i} has changed");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_that_only_sent_leave_no_state() -> Test {
    for transport in LINKED {
        let (tasks, session) = linked(transport).await?;
        let registered = session.register(&round_trip_graph(DType::Int32)?, &["p"], &["y"], &[]).await?;
        let value = wide(2_000_000)?;
        // The second task's part never runs, so the values pushed to it are not consumed; together they
        // exceed the push budget.
        let first = TaskName::new("w", 0);
        for step in 100..120 {
            let run = session.part(&registered, &first, step, &[("p:0", value.clone())], &["y:0"]);
            let link = session.links[&first].clone();
            let running = tokio::spawn(async move { link.run_graph(run).await });
            until("a push", || tasks[0].worker.is_running(step))?;
            for link in session.links.values() {
                link.cleanup_graph(step).await?;
            }
            assert!(running.await?.is_err());
        }
        // Cleaning the steps up has released the budget, and the link still works.
        let back = session.run(&registered, 200, &[("p:0", value.clone())], &["y:0"]).await?;
        assert!(back == [value]);
        assert!(tasks.iter().all(|t| t.worker.links() == (1, 1)), "{transport}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receives_from_an_ended_peer_fail_with_its_name() -> Test {
    for (transport, in_order) in LINKED.into_iter().flat_map(|t| [(t, false), (t, true)]) {
        let (mut tasks, session) = linked(transport).await?;
        let registered = session.register(&round_trip_graph(DType::Float)?, &["p"], &["y"], &[]).await?;
        let first = TaskName::new("w", 0);
        // The first task's run waits for the second task, whose part is not run.
        let run = session.part(&registered, &first, 7, &[("p:0", Tensor::scalar(1.0f32))], &["y:0"]);
        let link = session.links[&first].clone();
        let running = tokio::spawn(async move { link.run_graph(run).await });
        until("the wait", || !tasks[0].worker.awaited(7).is_empty())?;
        let gone = tasks.pop().ok_or("no second task")?;
        let (name, address) = (gone.name(), gone.address.clone());
        let start = Instant::now();
        if in_order {
            gone.worker.shutdown(Duration::ZERO).await;
        }
        drop(gone);
        let failed = running.await?.err().ok_or("it went on")?;
        assert_eq!(failed.code, graph::Code::Unavailable, "{transport}: {failed}");
        assert!(failed.message.contains(&name) && failed.message.contains(&address), "{failed}");
        assert_eq!(failed.message.contains("is shutting down"), in_order, "{failed}");
        assert!(start.elapsed() < LONG / 4, "{:?}", start.elapsed());
        until("the link's end", || tasks[0].worker.links() == (0, 0))?;
    }
    Ok(())
}

/// Requests a task's invitation. Returns its fields: version, process number, worker number, token, machine,
/// Unix socket, TCP address.
async fn invitation(task: &Task) -> Test<Vec<String>> {
    let mut request = tonic::Request::new(pb::GetStatusRequest {});
    request.metadata_mut().insert("anabranch-meet", "1".parse()?);
    let answer = task.client().await?.get_status(request).await?;
    let text = answer.metadata().get("anabranch-invitation").ok_or("no invitation")?.to_str()?.to_owned();
    Ok(text.split(' ').map(str::to_owned).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_an_invitation_are_refused() -> Test {
    let (tasks, session) = linked(Transport::Auto).await?;
    let parts = invitation(&tasks[1]).await?;
    let (epoch, token) = (u64::from_str_radix(&parts[1], 16)?, u128::from_str_radix(&parts[3], 16)?);
    let hello = |epoch: u64, token: u128, rest: &[u8]| {
        let head = [&b"anabrnch"[..], &epoch.to_le_bytes(), &token.to_le_bytes(), &7u64.to_le_bytes()];
        [&head.concat()[..], &(rest.len() as u32).to_le_bytes(), rest].concat()
    };
    let main = [&[0; 2][..], &[8; 8], &1u32.to_le_bytes(), &99u64.to_le_bytes(), b"/job:x/task:0"].concat();
    let welcome = b"welcome\n";
    let cases: [(&str, Vec<u8>, bool); 7] = [
        (
            "another protocol",
            b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n and more than a greeting".to_vec(),
            false,
        ),
        ("rubbish", vec![0xff; 4096], false),
        ("a wrong token", hello(epoch, token ^ 1, &main), false),
        ("another process's epoch", hello(epoch ^ 1, token, &main), false),
        ("a greeting without end", hello(epoch, token, &[7]), false),
        (
            "secondary connections that do not exist",
            hello(epoch, token, &[&[3, 0][..], &main[2..]].concat()),
            false,
        ),
        ("rubbish after a good greeting", [hello(epoch, token, &main), vec![0xee; 500]].concat(), true),
    ];
    for (name, bytes, welcomed) in cases {
        let unix = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&parts[5])?)?;
        let tcp = TcpStream::connect(&parts[6])?;
        unix.set_read_timeout(Some(LONG))?;
        tcp.set_read_timeout(Some(LONG))?;
        for (mut read, mut write) in [
            (Box::new(unix.try_clone()?) as Box<dyn Read>, Box::new(unix) as Box<dyn Write>),
            (Box::new(tcp.try_clone()?), Box::new(tcp)),
        ] {
            // The other end may close the connection before it has read everything.
            let _ = write.write_all(&bytes);
            let mut answer = Vec::new();
            // An error is ignored, because the other end may also reset the connection.
            let _ = read.read_to_end(&mut answer);
            assert_eq!(answer, if welcomed { &welcome[..] } else { &[] }, "{name}");
        }
    }
    let registered = session.register(&round_trip_graph(DType::Float)?, &["p"], &["y"], &[]).await?;
    let value = Tensor::scalar(2.0f32);
    assert_eq!(session.run(&registered, 50, &[("p:0", value.clone())], &["y:0"]).await?, [value]);
    until("the refused links' end", || tasks.iter().all(|t| t.worker.links() == (1, 1)))
}
