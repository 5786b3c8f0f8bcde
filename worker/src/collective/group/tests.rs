//! Tests of the values behind groups.

use super::calls::{Accepted, Awaited, Calls};
use super::direct::Direct;
use super::sends::{MAX_IN_FLIGHT, Sends, Taken};
use device::Error;
use graph::{Code, DeviceAttributes, DeviceName, Tensor};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn calls(rank: usize) -> Calls<&'static str> {
    let device = |task: u32| DeviceAttributes {
        name: DeviceName { job: "worker".into(), replica: 0, task, device_type: "CPU".into(), id: 0 },
        memory_limit: 0,
        incarnation: u64::from(task) + 1,
        physical_description: String::new(),
    };
    Calls::new([0, 1, 2].map(device).to_vec().into(), rank)
}

fn elements(value: i32) -> Option<(Arc<str>, Tensor)> {
    Some(("p".into(), Tensor::from(value)))
}

fn is_ready(awaited: &Awaited<&str>, value: i32) -> bool {
    matches!(awaited, Awaited::Ready(_, Ok(tensor)) if tensor.item::<i32>() == Ok(value))
}

fn done() -> Result<Tensor, Error> {
    Ok(Tensor::from(0))
}

#[test]
fn elements_meet_their_receives_in_any_order_of_calls() {
    let mut calls = calls(0);
    let [barrier, gather]: [Arc<str>; 2] = ["barrier".into(), "gather".into()];
    assert!(matches!(calls.accept(1, 1, &gather, elements(11)), Accepted::Kept));
    assert_eq!(calls.begin(&barrier), (0, None));
    assert_eq!(calls.begin(&gather), (1, None));
    assert!(is_ready(&calls.receive(1, 1, "p", "a", false), 11));
    assert!(matches!(calls.receive(0, 2, "p", "b", false), Awaited::Waiting));
    assert!(matches!(calls.receive(0, 1, "p", "c", false), Awaited::Waiting));
    assert_eq!(calls.awaited(0), [1, 2]);
    assert!(calls.awaits(2) && !calls.awaits(0));
    assert!(matches!(calls.accept(0, 2, &barrier, elements(2)), Accepted::Delivered("b", _)));
    assert_eq!(calls.awaited(0), [1]);
    assert_eq!(calls.untaken(1), 0);
    assert!(matches!(calls.accept(2, 1, &barrier, elements(3)), Accepted::Kept));
    assert_eq!(calls.untaken(1), 1);
}

#[test]
fn members_that_disagree_fail_whoever_comes_first() {
    let [sum, max]: [Arc<str>; 2] = ["all_reduce(sum)".into(), "all_reduce(max)".into()];
    let text = "the members disagree in call 0: rank 0 (/job:worker/replica:0/task:0) calls all_reduce(sum), but \
                rank 1 (/job:worker/replica:0/task:1) calls all_reduce(max)";
    let mut first = calls(0);
    first.begin(&sum);
    assert!(matches!(first.receive(0, 1, "p", "a", false), Awaited::Waiting));
    let Accepted::Failed(receivers, error) = first.accept(0, 1, &max, elements(1)) else { panic!() };
    assert_eq!((receivers, error.to_string()), (vec!["a"], text.to_owned()));
    let (result, must_tell) = first.end(0, Err(error));
    assert!(must_tell && result.is_err_and(|e| e.code() == Code::InvalidArgument));
    let mut second = calls(1);
    second.accept(0, 0, &sum, elements(1));
    let (number, failure) = second.begin(&max);
    assert_eq!((number, failure.map(|e| e.to_string())), (0, Some(text.to_owned())));
    // The failure that the other member reports is the same one, so the next call does not report it.
    drop(second.end(0, done()));
    assert!(second.fail(0, Error::invalid("told"), true).is_empty());
    assert_eq!(second.begin(&sum), (1, None));
}

#[test]
fn a_conflict_with_a_call_that_has_succeeded_fails_the_next() {
    let [to, from]: [Arc<str>; 2] = ["broadcast with root 0".into(), "broadcast with root 1".into()];
    let mut calls = calls(0);
    calls.begin(&to);
    let (result, must_tell) = calls.end(0, done());
    assert!(result.is_ok() && !must_tell);
    assert!(matches!(calls.accept(0, 1, &to, None), Accepted::Kept));
    assert!(matches!(calls.accept(0, 1, &from, elements(1)), Accepted::FailedLate(_)));
    let (number, failure) = calls.begin(&to);
    assert!(number == 1 && failure.is_some_and(|e| e.to_string().contains("call 0")));
    assert!(calls.end(1, done()).1, "the others must be told");
    assert_eq!(calls.begin(&to), (2, None));
    // The failure is reported once, although another member reports it first.
    drop(calls.end(2, done()));
    calls.fail(2, Error::invalid("rank 1 failed"), true);
    calls.fail(3, Error::invalid("rank 1 failed"), true);
    assert!(calls.begin(&to).1.is_some_and(|e| e.to_string() == "rank 1 failed"));
    drop(calls.end(3, done()));
    assert_eq!(calls.begin(&to), (4, None));
}

#[test]
fn failures_that_others_tell_come_before_and_after_the_call_begins() {
    let barrier: Arc<str> = "barrier".into();
    let mut calls = calls(0);
    calls.fail(0, Error::invalid("rank 2 failed"), true);
    let (_, failure) = calls.begin(&barrier);
    assert!(failure.is_some_and(|e| e.to_string() == "rank 2 failed"));
    let (result, must_tell) = calls.end(0, done());
    assert!(result.is_err() && !must_tell);
    calls.begin(&barrier);
    calls.receive(1, 2, "p", "a", false);
    assert_eq!(calls.fail(1, Error::invalid("rank 1 failed"), true), ["a"]);
    assert!(matches!(calls.receive(1, 1, "p", "b", false), Awaited::Ready("b", Err(_))));
}

#[test]
fn elements_of_a_member_that_has_left_are_received() {
    let gather: Arc<str> = "gather".into();
    let mut calls = calls(0);
    calls.accept(0, 1, &gather, elements(5));
    assert!(calls.leave(1).is_empty());
    calls.begin(&gather);
    assert!(is_ready(&calls.receive(0, 1, "p", "a", true), 5));
    let Awaited::Ready("b", Err(error)) = calls.receive(0, 1, "q", "b", true) else { panic!() };
    assert!(error.to_string().contains("task:1) has left"));
    calls.receive(0, 2, "p", "c", false);
    assert_eq!(calls.leave(2), ["c"]);
}

#[test]
fn direct_tensors_are_received_in_the_order_of_sending() {
    let mut direct = Direct::default();
    let values = |pairs: Vec<(&'static str, Tensor)>| -> Vec<(&'static str, i32)> {
        pairs.into_iter().map(|(r, t)| (r, t.item().unwrap_or(-1))).collect()
    };
    assert!(direct.arrive(1, Tensor::from(11)).is_empty());
    assert!(direct.receive("a").1.is_empty());
    assert!(direct.receive("b").1.is_empty() && direct.is_awaited());
    assert_eq!(values(direct.arrive(0, Tensor::from(10))), [("a", 10), ("b", 11)]);
    let (number, _) = direct.receive("c");
    assert_eq!(direct.give_up(number), Some("c"));
    direct.arrive(2, Tensor::from(12));
    assert_eq!((direct.untaken(), direct.give_up(number)), (1, None));
    assert_eq!(values(direct.receive("d").1), [("d", 12)]);
}

#[test]
fn sends_wait_until_the_receiver_has_taken_earlier_tensors() {
    let (mut sends, mut taken, deadline) = (Sends::default(), Taken::default(), Instant::now());
    let megabytes = |count: usize| Tensor::vector(&vec![0u8; count << 20]).unwrap_or_else(|e| panic!("{e}"));
    let large = (MAX_IN_FLIGHT >> 20) as usize + 6;
    for (i, size) in [large, 1, 10].into_iter().enumerate() {
        assert_eq!(sends.push(megabytes(size), i, deadline), i as u64);
    }
    // A tensor above the limit is sent when nothing else is in flight.
    assert!(matches!(sends.pop(), Some((0, _, 0))));
    assert!(sends.pop().is_none() && sends.are_waiting());
    assert_eq!(sends.overdue(deadline), [1, 2]);
    sends.set_deadline(2, deadline + Duration::from_secs(1));
    assert_eq!(sends.overdue(deadline), [1]);
    assert_eq!((sends.give_up(1), sends.give_up(1)), (Some(1), None));
    sends.set_taken(taken.count(&megabytes(large)).unwrap_or(0));
    assert_eq!(sends.in_flight(), 0);
    // The numbers of sent tensors have no gap, although a waiting tensor was given up.
    assert!(matches!(sends.pop(), Some((1, _, 2))));
    // A report of more bytes than were sent is limited to the bytes sent.
    sends.set_taken(u64::MAX);
    assert_eq!(sends.in_flight(), 0);
    // Received small tensors are reported together.
    let small = Tensor::from(0i32);
    let reports: Vec<u64> = (0..100_000).filter_map(|_| taken.count(&small)).collect();
    assert!((1..10).contains(&reports.len()), "{}", reports.len());
}

#[test]
fn deadlines_belong_to_calls_in_progress() {
    let (mut calls, mut direct, now) = (calls(0), Direct::default(), Instant::now());
    let barrier: Arc<str> = "barrier".into();
    for number in 0..2 {
        calls.begin(&barrier);
        calls.set_deadline(number, now);
        direct.receive(number);
        direct.set_deadline(number, now);
    }
    let before = now.checked_sub(Duration::from_secs(1));
    assert!(
        before.is_some_and(|before| calls.overdue(before).is_empty() && direct.overdue(before).is_empty())
    );
    drop(calls.end(0, done()));
    direct.arrive(0, Tensor::from(10));
    assert_eq!((calls.overdue(now), direct.overdue(now)), (vec![1], vec![1]));
    // A call that has begun only on other members has no deadline here.
    calls.accept(2, 1, &barrier, elements(1));
    assert_eq!(calls.overdue(now), [1]);
}
