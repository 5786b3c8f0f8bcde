//! Process groups: each member is a thread with a server of its own; the results of the members are compared with a
//! serial computation.
#![allow(clippy::print_stdout)]

use anabranch_client::{self as client, GroupOptions, Merge, ProcessGroup, Reduction, Work};
use graph::{Bool8, Code, DType, Shape, Tensor};
use half::{bf16, f16};
use proto::Cluster;
use std::collections::VecDeque;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use worker::Transport;

type Fallible<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Runs `member` on all members of a group of `size`. Returns their results by rank.
fn run<T: Send>(
    size: usize,
    options: &GroupOptions,
    member: impl Fn(ProcessGroup) -> Fallible<T> + Sync,
) -> Fallible<Vec<T>> {
    let ports: Vec<TcpListener> =
        (0..size).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let mut cluster = Cluster::new();
    for (task, port) in (0..).zip(&ports) {
        cluster.insert("worker", task, &port.local_addr()?.to_string())?;
    }
    drop(ports);
    std::thread::scope(|scope| {
        let members: Vec<_> = (0..size)
            .map(|rank| {
                let (cluster, options, member) = (cluster.clone(), options.clone(), &member);
                scope.spawn(move || member(ProcessGroup::join(cluster, rank, options)?))
            })
            .collect();
        members.into_iter().map(|m| m.join().unwrap_or_else(|_| Err("a member panicked".into()))).collect()
    })
}

fn options(transport: Transport) -> GroupOptions {
    GroupOptions { timeout: Duration::from_secs(30), join_timeout: Duration::from_secs(30), transport }
}

/// Returns elements whose sum depends on the order of addition.
fn value(rank: usize, i: usize) -> f32 {
    (rank as f32 + 0.1) * 1.7f32.powi(i as i32 % 40) - i as f32 / 3.0
}

fn values(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| value(rank, i)).collect()
}

fn tensor(rank: usize, dims: &[usize]) -> Fallible<Tensor> {
    let shape = Shape::new(dims)?;
    Ok(Tensor::from_slice(&values(rank, shape.num_elements()), shape)?)
}

/// Returns the sums of all members' elements in the order of the ranks.
fn sums(size: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| (1..size).fold(value(0, i), |sum, rank| sum + value(rank, i))).collect()
}

/// Checks every call; inputs have `rows` elements for each member and row.
fn check_calls(group: &ProcessGroup, rows: usize) -> Fallible {
    let (rank, size) = (group.rank(), group.size());
    let root = rows % size;
    let sum = sums(size, rows);
    let reduced = group.all_reduce(tensor(rank, &[rows])?, Reduction::SUM)?;
    assert_eq!(reduced.values::<f32>()?, sum);
    let mean = group.all_reduce(tensor(rank, &[rows])?, Reduction::MEAN)?;
    let expected: Vec<f32> = sum.iter().map(|sum| sum / size as f32).collect();
    assert_eq!(mean.values::<f32>()?, expected);
    let to_root = group.reduce(tensor(rank, &[rows])?, Reduction::SUM, root)?;
    assert_eq!(to_root.is_some(), rank == root);
    if let Some(to_root) = to_root {
        assert_eq!(to_root.values::<f32>()?, sum);
    }
    let from_root = group.broadcast(tensor(rank, &[1, rows])?, root)?;
    assert_eq!(from_root, tensor(root, &[1, rows])?);
    let all: Vec<f32> = (0..size).flat_map(|rank| values(rank, rows)).collect();
    let all = Tensor::from_slice(&all, Shape::new(&[size, rows])?)?;
    assert_eq!(group.all_gather(tensor(rank, &[rows])?)?, all);
    let gathered = group.gather(tensor(rank, &[rows])?, root)?;
    assert_eq!(gathered, (rank == root).then_some(all));
    let own = values(root, size * rows)[rank * rows..][..rows].to_vec();
    let whole = (rank == root).then(|| tensor(root, &[size, rows])).transpose()?;
    let row = group.scatter(whole, (DType::Float, &Shape::new(&[rows])?), root)?;
    assert_eq!(row.values::<f32>()?, own);
    let part = group.reduce_scatter(tensor(rank, &[size, rows])?, Reduction::SUM)?;
    assert_eq!(part.values::<f32>()?, &sums(size, size * rows)[rank * rows..][..rows]);
    let exchanged = group.all_to_all(tensor(rank, &[size, rows])?)?;
    let expected: Vec<f32> =
        (0..size).flat_map(|peer| values(peer, size * rows)[rank * rows..][..rows].to_vec()).collect();
    assert_eq!(exchanged.values::<f32>()?, expected);
    group.barrier()?;
    Ok(())
}

#[test]
fn every_call_agrees_with_a_serial_computation() -> Fallible {
    for (size, transport) in [
        (1, Transport::Auto),
        (2, Transport::Auto),
        (2, Transport::Shm),
        (2, Transport::Grpc),
        (3, Transport::Tcp),
        (4, Transport::Shm),
        (5, Transport::Auto),
    ] {
        run(size, &options(transport), |group| {
            [1, 7, 20_000].iter().try_for_each(|rows| check_calls(&group, *rows))
        })
        .map_err(|e| format!("{size} members, {transport}: {e}"))?;
    }
    Ok(())
}

#[test]
fn every_type_is_reduced_in_the_order_of_the_ranks() -> Fallible {
    run(3, &options(Transport::Shm), |group| {
        let ranks = [1.1f32, 2.3, 3.7].map(|x| x + 1.0);
        let own = ranks[group.rank()];
        let all = |tensor: Tensor, reduction| group.all_reduce(tensor, reduction);
        let sum = ranks[0] + ranks[1] + ranks[2];
        assert_eq!(all(Tensor::from(own), Reduction::SUM)?.item::<f32>()?, sum);
        let product = ranks.map(f64::from);
        let product = product[0] * product[1] * product[2];
        assert_eq!(all(Tensor::from(f64::from(own)), Reduction::PRODUCT)?.item::<f64>()?, product);
        let half = ranks.map(f16::from_f32).map(f16::to_f32);
        let half = f16::from_f32(half[0] + half[1] + half[2]);
        assert_eq!(all(Tensor::from(f16::from_f32(own)), Reduction::SUM)?.item::<f16>()?, half);
        let brain = ranks.map(bf16::from_f32).map(bf16::to_f32);
        let brain = bf16::from_f32(brain[0] + brain[1] + brain[2]);
        assert_eq!(all(Tensor::from(bf16::from_f32(own)), Reduction::SUM)?.item::<bf16>()?, brain);
        let rank = group.rank() as i32;
        assert_eq!(all(Tensor::from(rank - 1), Reduction::MIN)?.item::<i32>()?, -1);
        assert_eq!(all(Tensor::from(i64::from(rank)), Reduction::MAX)?.item::<i64>()?, 2);
        assert_eq!(all(Tensor::from(rank + 1), Reduction::MEAN)?.item::<i32>()?, 2);
        let error = all(Tensor::from(true), Reduction::SUM).err().ok_or("booleans are summed")?;
        assert_eq!(error.code(), Code::Unimplemented);
        // Types that cannot be reduced can be gathered.
        let flags = group.all_gather(Tensor::from(rank == 1))?;
        assert_eq!(
            flags.values::<Bool8>()?.iter().map(|&b| bool::from(b)).collect::<Vec<_>>(),
            [false, true, false]
        );
        assert_eq!(group.broadcast(Tensor::from(rank as u8), 2)?.item::<u8>()?, 2);
        let with_both = Reduction { merge: Merge::Max, is_mean: true };
        assert_eq!(all(Tensor::from(rank + 4), with_both)?.item::<i32>()?, 2);
        Ok(())
    })?;
    Ok(())
}

#[test]
fn calls_in_flight_at_once_are_told_apart() -> Fallible {
    run(3, &options(Transport::Auto), |group| {
        let (rank, size) = (group.rank(), group.size());
        let works: Vec<Work<Tensor>> = (0..40)
            .map(|i| {
                let rows = if i % 2 == 0 { 5 } else { 30_000 };
                Ok(group.start_all_reduce(tensor(rank + i, &[rows])?, Reduction::SUM))
            })
            .collect::<Fallible<_>>()?;
        let gathered = group.start_all_gather(Tensor::from(rank as i64));
        for (i, work) in works.into_iter().enumerate().rev() {
            let sum = work.wait()?;
            let expected = (1..size).fold(value(i, 3), |sum, rank| sum + value(rank + i, 3));
            assert_eq!(sum.values::<f32>()?[3], expected);
        }
        while !gathered.is_done() {
            std::thread::yield_now();
        }
        assert!(gathered.error().is_none());
        assert_eq!(gathered.wait()?.values::<i64>()?, [0, 1, 2]);
        Ok(())
    })?;
    Ok(())
}

/// Starts a call of a random operation, size and root. Returns it with its expected first element.
fn random_call(
    group: &ProcessGroup,
    random: &mut impl FnMut(usize) -> usize,
) -> Fallible<(Work<Tensor>, f32)> {
    let (rank, size) = (group.rank(), group.size());
    let rows = [1, 3, 3000, 40_000][random(4)];
    let (salt, root) = (random(50), random(size));
    let own = tensor(rank + salt, &[rows])?;
    let sum = (1..size).fold(value(salt, 0), |sum, rank| sum + value(rank + salt, 0));
    Ok(match random(4) {
        0 => (group.start_all_reduce(own, Reduction::SUM), sum),
        1 => (group.start_broadcast(own, root), value(root + salt, 0)),
        2 => (group.start_all_gather(own), value(salt, 0)),
        _ => {
            let all = tensor(rank + salt, &[size, rows])?;
            let own_sum =
                (1..size).fold(value(salt, rank * rows), |sum, peer| sum + value(peer + salt, rank * rows));
            (group.start_reduce_scatter(all, Reduction::SUM), own_sum)
        }
    })
}

#[test]
fn random_sequences_of_calls_in_flight_end_with_the_right_elements() -> Fallible {
    for (seed, transport) in (1usize..).zip([Transport::Auto, Transport::Shm, Transport::Tcp]) {
        run(3, &options(transport), |group| {
            // The random numbers are the same on all members.
            let mut state = seed * 1_000_003;
            let mut random = |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let mut in_flight = VecDeque::new();
            for i in 0..150 {
                in_flight.push_back(random_call(&group, &mut random)?);
                let limit = random(12);
                if (i + group.rank() * 7) % 13 == 0 {
                    std::thread::sleep(Duration::from_millis(3));
                }
                while in_flight.len() > limit {
                    let Some((work, expected)) = in_flight.pop_front() else { break };
                    assert_eq!(work.wait()?.values::<f32>()?[0], expected, "seed {seed}");
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn messages_between_two_members_are_received_in_the_order_of_sending() -> Fallible {
    run(3, &options(Transport::Shm), |group| {
        let (next, before) = ((group.rank() + 1) % 3, (group.rank() + 2) % 3);
        let first = group.start_recv(before);
        // The receiver stores at most 256 messages that no call awaits, so the sender must wait for room. Some messages
        // are large.
        for i in 0..600 {
            let rows = if i % 50 == 7 { 50_000 } else { 1 };
            group.send(tensor(i, &[rows])?, next)?;
        }
        group.send(Tensor::string("the end"), next)?;
        group.barrier()?;
        assert_eq!(first.wait()?.values::<f32>()?, values(0, 1));
        for i in 1..600 {
            assert_eq!(group.recv(before)?.values::<f32>()?[0], value(i, 0));
        }
        assert_eq!(group.recv(before)?, Tensor::string("the end"));
        let own = group.recv(group.rank()).err().map(|e| e.code());
        assert_eq!(
            (own, group.send(Tensor::from(1), 3).err().map(|e| e.code())),
            (Some(Code::InvalidArgument), Some(Code::InvalidArgument))
        );
        Ok(())
    })?;
    Ok(())
}

/// Runs one call on each of two members. Returns the members' errors; afterwards, the group must work.
fn errors(
    size: usize,
    call: impl Fn(&ProcessGroup) -> client::Result<()> + Sync,
) -> Fallible<Vec<Option<(Code, String)>>> {
    run(size, &options(Transport::Auto), |group| {
        let error = call(&group).err().map(|e| (e.code(), e.to_string()));
        let sum = group.all_reduce(Tensor::from(group.rank() as i32 + 1), Reduction::SUM)?;
        assert_eq!(sum.item::<i32>()?, (size * (size + 1) / 2) as i32);
        Ok(error)
    })
}

#[test]
fn members_that_disagree_get_an_error_that_shows_both_sides() -> Fallible {
    type Call = fn(&ProcessGroup) -> client::Result<()>;
    let cases: [(&str, Call, Call); 6] = [
        (
            "all_reduce(sum) of float []|all_reduce(max) of float []",
            |g| g.all_reduce(Tensor::from(1f32), Reduction::SUM).map(drop),
            |g| g.all_reduce(Tensor::from(1f32), Reduction::MAX).map(drop),
        ),
        (
            "all_reduce(sum) of float []|all_reduce(sum) of int32 []",
            |g| g.all_reduce(Tensor::from(1f32), Reduction::SUM).map(drop),
            |g| g.all_reduce(Tensor::from(1i32), Reduction::SUM).map(drop),
        ),
        (
            "all_gather of float [2]|all_gather of float [3]",
            |g| g.all_gather(Tensor::try_from([1f32, 2.0])?).map(drop),
            |g| g.all_gather(Tensor::try_from([1f32, 2.0, 3.0])?).map(drop),
        ),
        ("barrier|all_gather of float []", ProcessGroup::barrier, |g| {
            g.all_gather(Tensor::from(1f32)).map(drop)
        }),
        // In this call neither member sends elements to the other.
        (
            "reduce(sum) with root 0 of float []|reduce(sum) with root 1 of float []",
            |g| g.reduce(Tensor::from(1f32), Reduction::SUM, 0).map(drop),
            |g| g.reduce(Tensor::from(1f32), Reduction::SUM, 1).map(drop),
        ),
        (
            "gather with root 0 of float []|gather with root 1 of float []",
            |g| g.gather(Tensor::from(1f32), 0).map(drop),
            |g| g.gather(Tensor::from(1f32), 1).map(drop),
        ),
    ];
    for (sides, first, second) in cases {
        let start = Instant::now();
        let found = errors(2, |group| if group.rank() == 0 { first(group) } else { second(group) })?;
        let (first, second) = sides.split_once('|').ok_or("no sides")?;
        for error in found {
            let (code, text) = error.ok_or_else(|| format!("{sides}: no error"))?;
            assert_eq!(code, Code::InvalidArgument, "{text}");
            for side in [
                format!("rank 0 (/job:worker/replica:0/task:0) calls {first}"),
                format!("rank 1 (/job:worker/replica:0/task:1) calls {second}"),
            ] {
                assert!(text.contains(&side), "{text}");
            }
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{sides} took {:?}", start.elapsed());
    }
    Ok(())
}

#[test]
fn a_member_with_an_invalid_call_fails_the_call_of_all() -> Fallible {
    let found = errors(3, |group| group.scatter(None, (DType::Float, &Shape::new(&[2])?), 1).map(drop))?;
    for (rank, error) in found.into_iter().enumerate() {
        let (code, text) = error.ok_or_else(|| format!("rank {rank} has no error"))?;
        assert_eq!(code, Code::InvalidArgument, "{text}");
        let teller = if rank == 1 { "" } else { "rank 1 (/job:worker/replica:0/task:1): " };
        assert_eq!(text, format!("{teller}scatter: the root has passed no tensor"));
    }
    Ok(())
}

#[test]
fn a_broadcast_from_two_roots_fails_the_next_call() -> Fallible {
    let errors = run(2, &options(Transport::Auto), |group| {
        let mut errors = Vec::new();
        errors.extend(group.broadcast(Tensor::from(1f32), group.rank()).err());
        // The conflict is reported while the members make further calls.
        for _ in 0..100 {
            errors.extend(group.barrier().err());
        }
        group.barrier()?;
        Ok(errors)
    })?;
    for error in errors.iter().flatten() {
        let text = error.to_string();
        assert!(text.contains("broadcast with root 0") && text.contains("broadcast with root 1"), "{text}");
    }
    assert!(errors.iter().all(|errors| !errors.is_empty()), "{errors:?}");
    Ok(())
}

#[test]
fn a_member_that_does_not_come_is_named_at_the_deadline() -> Fallible {
    let patience = Duration::from_millis(500);
    let mut with_timeout = options(Transport::Auto);
    with_timeout.timeout = patience;
    run(3, &with_timeout, |group| {
        group.barrier()?;
        let start = Instant::now();
        if group.rank() == 2 {
            std::thread::sleep(patience * 2);
        }
        let result = group.all_reduce(Tensor::from(1f32), Reduction::SUM);
        let error = result.err().ok_or("no error")?;
        let text = error.to_string();
        assert_eq!(error.code(), Code::DeadlineExceeded, "{text}");
        if group.rank() != 2 {
            assert!(start.elapsed() < patience * 3 / 2, "{:?}", start.elapsed());
            let named = "group 'world': call 2, all_reduce(sum) of float []: waits for rank 2 \
                         (/job:worker/replica:0/task:2) (last heard of in call 1); waited 0.5 s";
            assert!(text.contains(named), "{text}");
        }
        if group.rank() == 0 {
            let error = group.recv(1).err().ok_or("nothing was sent")?;
            assert!(error.to_string().contains("rank 1 (/job:worker/replica:0/task:1) has sent nothing"));
        }
        assert!(group.start_all_gather(Tensor::from(2f32)).wait_until(Instant::now() + patience * 4).is_ok());
        Ok(())
    })?;
    Ok(())
}

#[test]
fn calls_that_nobody_waits_for_end_at_the_timeout() -> Fallible {
    let options = GroupOptions { timeout: Duration::from_millis(400), ..options(Transport::Auto) };
    run(2, &options, |group| {
        if group.rank() == 1 {
            // The call of the other member fails on this member too.
            std::thread::sleep(Duration::from_secs(1));
            assert!(group.barrier().is_err());
            return group.send(Tensor::from(3i32), 0).map_err(Into::into);
        }
        let (sum, tensor) =
            (group.start_all_reduce(Tensor::from(1.0f32), Reduction::SUM), group.start_recv(1));
        let deadline = Instant::now() + Duration::from_secs(5);
        while !(sum.is_done() && tensor.is_done()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        for (error, text) in [(sum.error(), "waits for rank 1"), (tensor.error(), "rank 1")] {
            let error = error.ok_or("a call has not ended")?;
            assert_eq!(error.code(), Code::DeadlineExceeded);
            assert!(error.to_string().contains(text), "{error}");
        }
        assert!(Instant::now() < deadline);
        // A deadline that the waiting thread gives replaces the group's timeout, even if it is later.
        let late = group.start_recv(1).wait_until(Instant::now() + Duration::from_secs(20))?;
        assert_eq!(late.item::<i32>()?, 3);
        Ok(())
    })?;
    Ok(())
}

#[test]
fn a_sender_waits_until_the_receiver_has_received_earlier_tensors() -> Fallible {
    const MEGABYTES: usize = 20;
    let options = GroupOptions { timeout: Duration::from_millis(1500), ..options(Transport::Auto) };
    run(2, &options, |group| {
        let tensor = |i: usize| {
            Ok::<_, Box<dyn Error + Send + Sync>>(Tensor::vector(&vec![i as u8; MEGABYTES << 20])?)
        };
        if group.rank() == 0 {
            let sends = (0..6).map(|i| Ok(group.start_send(tensor(i)?, 1))).collect::<Fallible<Vec<_>>>()?;
            std::thread::sleep(Duration::from_millis(300));
            // The first three tensors are in flight.
            let done: Vec<bool> = sends.iter().map(Work::is_done).collect();
            assert_eq!(done, [true, true, true, false, false, false]);
            group.barrier()?;
            sends.into_iter().try_for_each(Work::wait)?;
            group.barrier()?;
            // The receiver receives nothing from here on.
            (0..3)
                .try_for_each(|i| group.send(tensor(i)?, 1).map_err(Box::<dyn Error + Send + Sync>::from))?;
            let error = group.send(tensor(3)?, 1).err().ok_or("the tensor was sent")?;
            assert_eq!(error.code(), Code::DeadlineExceeded);
            let text = error.to_string();
            assert!(text.contains("send: rank 1 (") && text.contains("bytes that are in flight"), "{text}");
        } else {
            group.barrier()?;
            for i in 0..6 {
                assert_eq!(group.recv(0)?, tensor(i)?);
            }
            group.barrier()?;
            std::thread::sleep(options.timeout * 2);
        }
        Ok(())
    })?;
    Ok(())
}

#[test]
fn members_that_send_before_they_receive_do_not_wait_for_each_other() -> Fallible {
    // Number of messages of a member: more than the other accepts while no call awaits them, with more bytes than may
    // be in flight.
    const MESSAGES: usize = 400;
    run(2, &options(Transport::Auto), |group| {
        let other = 1 - group.rank();
        let tensor = Tensor::vector(&vec![1.0f32; 100_000])?;
        let sends: Vec<Work<()>> = (0..MESSAGES).map(|_| group.start_send(tensor.clone(), other)).collect();
        for _ in 0..MESSAGES {
            assert_eq!(group.recv(other)?.num_elements(), 100_000);
        }
        sends.into_iter().try_for_each(Work::wait)?;
        Ok(())
    })?;
    Ok(())
}

#[test]
fn members_that_do_not_join_are_named() -> Fallible {
    let mut impatient = options(Transport::Auto);
    impatient.join_timeout = Duration::from_millis(300);
    let cluster = Cluster::parse("worker=127.0.0.1:0,127.0.0.1:1,127.0.0.1:2")?;
    let error = ProcessGroup::join(cluster.clone(), 0, impatient.clone()).err().ok_or("all came")?;
    let text = error.to_string();
    assert!(text.contains("these members did not come: rank 1 (/job:worker/replica:0/task:1)"), "{text}");
    assert!(text.contains("rank 2 (/job:worker/replica:0/task:2)"), "{text}");
    for cluster in ["ps=a:1;worker=b:1", "worker=1@a:1"] {
        let error = ProcessGroup::join(Cluster::parse(cluster)?, 0, impatient.clone()).err();
        assert_eq!(error.map(|e| e.code()), Some(Code::InvalidArgument), "{cluster}");
    }
    let error = ProcessGroup::join(cluster, 3, impatient).err();
    assert_eq!(error.map(|e| e.code()), Some(Code::InvalidArgument));
    Ok(())
}

#[test]
fn groups_of_some_members_work_beside_the_whole_group() -> Fallible {
    run(4, &options(Transport::Auto), |group| {
        let parity = group.rank() % 2;
        let even = group.new_group(&[2, 0])?;
        let odd = group.new_group(&[1, 3])?;
        assert_eq!((even.is_some(), odd.is_some()), (parity == 0, parity == 1));
        let part = even.or(odd).ok_or("in no group")?;
        assert_eq!((part.rank(), part.size()), (group.rank() / 2, 2));
        let both = part.start_all_gather(Tensor::from(group.rank() as i32));
        let sum = group.all_reduce(Tensor::from(1i32), Reduction::SUM)?;
        assert_eq!(both.wait()?.values::<i32>()?, [parity as i32, parity as i32 + 2]);
        assert_eq!(sum.item::<i32>()?, 4);
        drop(part);
        // A new group of the same members is independent of the first one.
        let all = group.new_group(&[0, 1, 2, 3])?.ok_or("in no group")?;
        assert_eq!(all.all_reduce(Tensor::from(2i32), Reduction::SUM)?.item::<i32>()?, 8);
        assert_eq!(group.all_reduce(Tensor::from(3i32), Reduction::SUM)?.item::<i32>()?, 12);
        for ranks in [&[0, 0][..], &[4], &[]] {
            assert_eq!(group.new_group(ranks).err().map(|e| e.code()), Some(Code::InvalidArgument));
        }
        Ok(())
    })?;
    Ok(())
}

#[test]
fn a_member_that_leaves_has_sent_everything_and_fails_later_calls() -> Fallible {
    let left = Mutex::new(());
    run(3, &options(Transport::Tcp), |group| {
        group.barrier()?;
        if group.rank() == 1 {
            let _left = left.lock();
            group.broadcast(tensor(1, &[100_000])?, 1)?;
            group.send(Tensor::from(7i32), 0)?;
            return Ok(());
        }
        // The other members make their calls after member 1 has left.
        std::thread::sleep(Duration::from_millis(100));
        drop(left.lock());
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(group.broadcast(tensor(0, &[100_000])?, 1)?, tensor(1, &[100_000])?);
        if group.rank() == 0 {
            assert_eq!(group.recv(1)?.item::<i32>()?, 7);
        }
        let start = Instant::now();
        for _ in 0..2 {
            let error = group.barrier().err().ok_or("a barrier without a member")?;
            assert_eq!(error.code(), Code::Unavailable);
            assert!(error.to_string().contains("rank 1 (/job:worker/replica:0/task:1) has left"), "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(1));
        // The remaining members form a new group.
        let rest = group.new_group(&[0, 2])?.ok_or("in no group")?;
        assert_eq!(rest.all_reduce(Tensor::from(1i32), Reduction::SUM)?.item::<i32>()?, 2);
        Ok(())
    })?;
    Ok(())
}

/// Runs a member in a separate process: it reduces until a member is lost, and continues with the remaining members.
#[test]
fn member_of_a_group_of_processes() -> Fallible {
    if std::env::var_os("RANK").is_none() {
        return Ok(());
    }
    let group = ProcessGroup::from_env()?;
    let lost = group.rank() + 1 == group.size();
    println!("member {} is ready", group.rank());
    let pending = if lost { None } else { Some(group.start_recv(group.size() - 1)) };
    let error = loop {
        match group.all_reduce(Tensor::full(1f32, Shape::new(&[50_000])?)?, Reduction::SUM) {
            Ok(sum) => assert_eq!(sum.values::<f32>()?[49_999], group.size() as f32),
            Err(error) => break error,
        }
    };
    println!("failed at {}", milliseconds()?);
    println!("all_reduce: {:?}: {error}", error.code());
    let start = Instant::now();
    let later = [group.barrier().err(), pending.and_then(|work| work.wait().err())];
    assert!(start.elapsed() < Duration::from_secs(1), "later calls took {:?}", start.elapsed());
    println!("later: {:?}", later.map(|error| error.map(|error| error.code())));
    let survivors: Vec<usize> = (0..group.size() - 1).collect();
    let rest = group.new_group(&survivors)?.ok_or("in no group")?;
    println!("sum {}", rest.all_reduce(Tensor::from(rest.rank() as i32 + 1), Reduction::SUM)?.item::<i32>()?);
    Ok(())
}

/// Returns the milliseconds since 1970.
fn milliseconds() -> Fallible<u128> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())
}

fn spawn_member(rank: usize, size: usize, port: u16) -> Fallible<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "member_of_a_group_of_processes", "--nocapture"]);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    Ok(command.stdout(Stdio::piped()).spawn()?)
}

#[test]
fn survivors_of_a_killed_process_get_its_name_and_go_on() -> Fallible {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut members = (0..4).map(|rank| spawn_member(rank, 4, port)).collect::<Fallible<Vec<Child>>>()?;
    let mut lost = members.pop().ok_or("no member")?;
    let ready = |line: &std::io::Result<String>| line.as_ref().is_ok_and(|line| line.contains("is ready"));
    let output = lost.stdout.take().ok_or("no output")?;
    BufReader::new(output).lines().find(ready).ok_or("the member has ended")??;
    std::thread::sleep(Duration::from_millis(300));
    lost.kill()?;
    let killed = milliseconds()?;
    for mut member in members {
        let output = member.stdout.take().ok_or("no output")?;
        let lines = BufReader::new(output).lines().collect::<Result<Vec<String>, _>>()?;
        let has = |text: &str| lines.iter().any(|line| line.contains(text));
        let failed = lines.iter().find_map(|line| line.strip_prefix("failed at ")).ok_or("no failure")?;
        assert!(failed.parse::<u128>()? < killed + 1000, "{failed}, killed at {killed}");
        let named = "all_reduce: Unavailable: group 'world': rank 3 (/job:worker/replica:0/task:3) is lost";
        assert!(has(named), "{lines:#?}");
        assert!(has("later: [Some(Unavailable), Some(Unavailable)]"), "{lines:#?}");
        assert!(has("sum 6") && member.wait()?.success(), "{lines:#?}");
    }
    lost.wait()?;
    Ok(())
}
