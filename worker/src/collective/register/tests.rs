//! Tests of the register.

use super::*;
use graph::{DeviceName, Shape, TaskName};

type Groups = Register<u32, u32>;

impl Caller for u32 {
    /// Returns true for callers from 1000 on, which have given up.
    fn has_gone(&self) -> bool {
        *self >= 1000
    }
}

fn join(task: u32, session: &str, group_size: usize) -> Join {
    let device = DeviceAttributes {
        name: DeviceName::new(&TaskName::new("worker", task), "CPU", 0),
        memory_limit: 1,
        incarnation: 1,
        physical_description: String::new(),
    };
    Join { session: session.into(), group_key: 1, group_size, device, rank: None, step_id: 1 }
}

fn agree(task: u32, terms: Terms, is_source: bool) -> Agree {
    Agree {
        group_key: 1,
        is_communicator: false,
        instance_key: 9,
        device: format!("/job:worker/replica:0/task:{task}/device:CPU:0"),
        node: format!("node_{task}"),
        terms,
        is_source,
        step_id: 1,
        renewal: None,
        bucket: None,
    }
}

/// Returns the agreement on an instance that is in no bucket, as the answer to a member.
fn agreed(source: Option<usize>) -> Result<Agreement, Status> {
    Ok(Agreement { source, is_bucketed: false })
}

fn terms(kind: i32, elements: usize) -> Terms {
    Terms { kind, dtype: 1, shape: Shape::new(&[elements]).ok(), functions: String::new() }
}

/// Returns the callers that are answered, each with the tasks of the members or the text of the error.
fn seen(answers: Answers<u32, Met>) -> Vec<(u32, Result<Vec<u32>, String>)> {
    let tasks = |met: Met| met.members.iter().map(|member| member.name.task).collect();
    answers.into_iter().map(|(caller, r)| (caller, r.map(tasks).map_err(|s| s.message))).collect()
}

fn complete(register: &mut Groups, members: u32) {
    for task in 0..members {
        register.join(join(task, "s", members as usize), task);
    }
}

#[test]
fn members_learn_each_other_in_the_order_of_their_names_when_the_last_has_joined() {
    let mut register = Groups::default();
    assert_eq!(seen(register.join(join(10, "s", 3), 1)), []);
    assert_eq!(seen(register.join(join(2, "s", 3), 2)), []);
    // A member may join twice without an effect.
    assert_eq!(seen(register.join(join(2, "s", 3), 3)), []);
    let all = Ok(vec![0, 2, 10]);
    let answered = seen(register.join(join(0, "s", 3), 4));
    assert_eq!(answered, [(1, all.clone()), (2, all.clone()), (3, all.clone()), (4, all.clone())]);
    assert_eq!(seen(register.join(join(10, "s", 3), 5)), [(5, all)]);
}

#[test]
fn a_group_refuses_another_size_and_a_member_too_many() {
    let mut register = Groups::default();
    complete(&mut register, 2);
    let refusals = [seen(register.join(join(0, "s", 3), 7)), seen(register.join(join(5, "s", 2), 8))];
    let texts = ["is joining a group with size3, but that group has size 2", "already full"];
    for (refusal, text) in refusals.iter().zip(texts) {
        let [(_, Err(message))] = &refusal[..] else { panic!("{refusal:?}") };
        assert!(message.contains(text) && message.contains("task:1"), "{message}");
    }
}

#[test]
fn members_of_a_communicator_have_the_ranks_that_they_give() {
    let mut register = Groups::default();
    let ranked =
        |task: u32, rank: usize, step_id: i64| Join { rank: Some(rank), step_id, ..join(task, "s", 3) };
    // This group of another kind with the same key does not affect the others.
    register.join(join(0, "s", 3), 9);
    assert_eq!(seen(register.join(ranked(0, 2, 1), 1)), []);
    // Two members with the same rank are an error for both, and for a member that joins later in the step.
    let refused = seen(register.join(ranked(1, 2, 1), 2));
    let [(1, Err(first)), (2, Err(second))] = &refused[..] else { panic!("{refused:?}") };
    assert!(first == second && first.contains("with rank 2, which /job:worker/replica:0/task:0"), "{first}");
    assert!(matches!(&seen(register.join(ranked(2, 1, 1), 3))[..], [(3, Err(third))] if third == first));
    // The same error goes to a member of another session that missed the step; the next step replaces the group.
    let late = Join { session: "late".into(), ..ranked(2, 1, 7) };
    assert!(matches!(&seen(register.join(late, 8))[..], [(8, Err(text))] if text == first));
    assert_eq!(seen(register.join(ranked(0, 2, 2), 4)), []);
    assert_eq!(seen(register.join(ranked(1, 0, 2), 5)), []);
    let all = Ok(vec![1, 2, 0]);
    let answered = seen(register.join(ranked(2, 1, 2), 6));
    assert_eq!(answered, [(4, all.clone()), (5, all.clone()), (6, all)]);
    // A member cannot change its rank.
    let refused = seen(register.join(ranked(0, 1, 3), 7));
    assert!(matches!(&refused[..], [(7, Err(text))] if text.contains("it has rank 2")), "{refused:?}");
}

#[test]
fn a_member_from_a_later_session_begins_its_group_anew() {
    let mut register = Groups::default();
    complete(&mut register, 2);
    assert_eq!(seen(register.join(join(0, "later", 3), 5)), []);
    assert_eq!(seen(register.join(join(1, "later", 3), 6)), []);
    assert_eq!(seen(register.join(join(2, "later", 3), 7)).len(), 3);
    // Callers that wait for the groups of a session are returned at its end.
    register.join(join(0, "last", 2), 8);
    assert_eq!(register.close_session("last").0, [8]);
}

#[test]
fn members_of_a_reduction_must_agree_on_their_terms() {
    let mut register = Groups::default();
    complete(&mut register, 3);
    assert_eq!(register.agree(agree(0, terms(0, 6), false), 1), []);
    let refused = register.agree(agree(1, terms(0, 5), false), 2);
    let [(1, Err(status)), (2, Err(_))] = &refused[..] else { panic!("{refused:?}") };
    assert_eq!(status.code, Code::InvalidArgument);
    for text in ["Shape mismatch in the collective instance 9", "[6]", "[5]", "node_0", "task:1"] {
        assert!(status.message.contains(text), "{text}: {}", status.message);
    }
    // A member that calls after the failure gets the same error.
    assert_eq!(register.agree(agree(2, terms(0, 6), false), 3), [(3, Err(status.clone()))]);
    // The instance is replaced when a member calls again.
    for task in 0..2 {
        assert_eq!(register.agree(agree(task, terms(0, 5), false), task), []);
    }
    let all = [(0, agreed(None)), (1, agreed(None)), (2, agreed(None))];
    assert_eq!(register.agree(agree(2, terms(0, 5), false), 2), all);
    let functions = |functions: &str| Terms { functions: functions.into(), ..terms(0, 5) };
    assert_eq!(register.agree(agree(1, functions("Add,Id"), false), 4), []);
    let refused = register.agree(agree(0, functions("Max,Id"), false), 6);
    assert!(
        matches!(&refused[..], [(4, Err(s)), (6, Err(_))] if s.message.contains("Max,Id")),
        "{refused:?}"
    );
}

#[test]
fn members_agree_anew_when_the_terms_of_one_have_changed() {
    let mut register = Groups::default();
    complete(&mut register, 2);
    let all_agree = |answers: &Answers<u32, Agreement>| answers.iter().all(|(_, r)| r.is_ok());
    register.agree(agree(0, terms(0, 6), false), 0);
    assert_eq!(register.agree(agree(1, terms(0, 6), false), 1).len(), 2);
    // Member 1 has received the notice that member 0 has other terms, and calls first, with its old terms.
    let renewed = |task, elements, renewal| Agree {
        step_id: 2,
        renewal: Some(renewal),
        ..agree(task, terms(0, elements), false)
    };
    assert_eq!(register.agree(renewed(1, 6, 0), 2), []);
    let refused = register.agree(renewed(0, 5, 0), 3);
    assert!(matches!(&refused[..], [(2, Err(_)), (3, Err(s))] if s.message.contains("Shape mismatch")));
    // In the next iteration both members have other terms.
    assert_eq!(register.agree(renewed(1, 7, 1), 4), []);
    let answers = register.agree(renewed(0, 7, 1), 5);
    assert!(answers.len() == 2 && all_agree(&answers), "{answers:?}");
}

#[test]
fn a_late_member_of_a_failed_step_does_not_disturb_the_next() {
    let mut register = Groups::default();
    complete(&mut register, 3);
    let in_step = |task, elements, step_id| Agree { step_id, ..agree(task, terms(0, elements), false) };
    assert_eq!(register.agree(in_step(0, 6, 1), 0), []);
    assert_eq!(register.agree(in_step(1, 5, 1), 1).len(), 2);
    assert_eq!(register.agree(in_step(0, 4, 2), 2), []);
    let late = register.agree(in_step(2, 6, 1), 3);
    assert!(matches!(&late[..], [(3, Err(s))] if s.message.contains("Shape mismatch")), "{late:?}");
    assert_eq!(register.agree(in_step(1, 4, 2), 4), []);
    assert_eq!(
        register.agree(in_step(2, 4, 2), 5),
        [(2, agreed(None)), (4, agreed(None)), (5, agreed(None))]
    );
    // A member that waits for the others of its step gets an error when one of them calls in the next step.
    let other = |task, step_id| Agree { instance_key: 8, ..in_step(task, 4, step_id) };
    assert_eq!(register.agree(other(0, 3), 6), []);
    let begun = register.agree(other(1, 4), 7);
    assert!(matches!(&begun[..], [(6, Err(s))] if s.code == Code::Aborted), "{begun:?}");
}

#[test]
fn members_of_a_broadcast_learn_its_only_source() {
    let mut register = Groups::default();
    complete(&mut register, 3);
    assert_eq!(register.agree(agree(0, terms(BROADCAST, 4), false), 0), []);
    assert_eq!(register.agree(agree(2, terms(BROADCAST, 4), true), 1), []);
    let all = [(0, agreed(Some(2))), (1, agreed(Some(2))), (2, agreed(Some(2)))];
    assert_eq!(register.agree(agree(1, terms(BROADCAST, 4), false), 2), all);
    let second = register.agree(agree(1, terms(BROADCAST, 4), true), 3);
    let text = "already has source 2, received second claim from 1";
    assert!(matches!(&second[..], [(3, Err(status))] if status.message.contains(text)), "{second:?}");
    for task in 0..2 {
        let instance = Agree { instance_key: 10, ..agree(task, terms(BROADCAST, 4), false) };
        assert_eq!(register.agree(instance, task), []);
    }
    let none = register.agree(Agree { instance_key: 10, ..agree(2, terms(BROADCAST, 4), false) }, 2);
    assert_eq!(none.len(), 3);
    let has_no_source = |s: &Status| s.message.contains("found no source for broadcast");
    assert!(none.iter().all(|(_, r)| r.as_ref().is_err_and(has_no_source)));
}

#[test]
fn an_instance_of_an_unknown_group_is_refused() {
    let mut register = Groups::default();
    register.join(join(0, "s", 2), 1);
    let refused = register.agree(agree(0, terms(0, 6), false), 2);
    assert!(
        matches!(&refused[..], [(2, Err(status))] if status.code == Code::FailedPrecondition),
        "{refused:?}"
    );
}

#[test]
fn a_step_that_fails_in_one_session_ends_the_waits_in_the_others() {
    let mut register = Groups::default();
    register.join(join(0, "s", 2), 1);
    let failure = Status::new(Code::NotFound, "no file");
    assert_eq!(register.fail_step(2, &failure), (vec![], vec![]));
    assert_eq!(register.fail_step(1, &failure), (vec![1], vec![]));
    // A member that calls late in the step is refused; in the next step the group is complete.
    assert_eq!(seen(register.join(join(1, "t", 2), 2)), [(2, Err("no file".into()))]);
    let next = |task| Join { step_id: 3, ..join(task, if task == 0 { "s" } else { "t" }, 2) };
    assert_eq!(seen(register.join(next(0), 3)), []);
    assert_eq!(seen(register.join(next(1), 4)).len(), 2);
    let of_step_3 = |task, elements| Agree { step_id: 3, ..agree(task, terms(0, elements), false) };
    assert_eq!(register.agree(of_step_3(0, 6), 5), []);
    assert_eq!(register.fail_step(3, &failure), (vec![], vec![5]));
    // The instance has been replaced, so other terms are accepted.
    let of_step_4 = |task| Agree { step_id: 4, ..agree(task, terms(0, 7), false) };
    assert_eq!(register.agree(of_step_4(1), 6), []);
    assert_eq!(register.agree(of_step_4(0), 7).len(), 2);
    let tasks: Vec<u32> = register.members_with("t").iter().map(|member| member.name.task).collect();
    assert_eq!(tasks, [0, 1]);
}

#[test]
fn a_late_member_is_named() {
    let mut register = Groups::default();
    register.join(join(1, "s", 2), 1);
    let joined = register.who_has_joined((1, false));
    assert!(joined.starts_with("1 of 2 members have come: /job:worker/replica:0/task:1"), "{joined}");
    register.join(join(0, "s", 2), 2);
    register.agree(agree(1, terms(0, 6), false), 3);
    assert_eq!(register.who_is_missing((1, false), 9), "waits for /job:worker/replica:0/task:0/device:CPU:0");
}

#[test]
fn rubbish_is_refused_by_name() {
    let mut register = Groups::default();
    let mut refused = |join: Join| match seen(register.join(join, 1)).pop() {
        Some((1, Err(text))) => text,
        other => panic!("{other:?}"),
    };
    assert!(refused(join(0, "s", 1 << 30)).contains("group 1 of 1073741824 members is larger"));
    let mut long = join(0, "s", 2);
    long.device.name.job = "x".repeat(10_000).into();
    assert!(refused(long).contains("the name of a device has 100"));
    let mut long = join(0, "s", 2);
    long.device.physical_description = "x".repeat(1 << 20);
    assert!(refused(long).contains("the description of a device has 1048576 bytes"));
    complete(&mut register, 2);
    let long = Agree { node: "n".repeat(1 << 20), ..agree(0, terms(0, 6), false) };
    let refused = register.agree(long, 2);
    assert!(
        matches!(&refused[..], [(2, Err(s))] if s.message.contains("the name of a node has")),
        "{refused:?}"
    );
    assert_eq!(register.agree(agree(0, terms(0, 6), false), 3), []);
}

#[test]
fn groups_that_nobody_uses_are_dropped_when_there_are_too_many() {
    let mut register = Groups::default();
    let with_key = |group_key: i32, size: usize| {
        let mut join = Join { group_key, ..join(0, "s", size) };
        join.device.physical_description = "x".repeat(4000);
        join
    };
    // One group has a waiting member, and one has a caller that has given up.
    assert_eq!(seen(register.join(with_key(-1, 2), 1)), []);
    assert_eq!(seen(register.join(with_key(-2, 2), 1000)), []);
    let count = 3 * limits::MAX_HELD / 4000;
    for key in 0..count as i32 {
        assert_eq!(register.join(with_key(key, 1), 2).len(), 1, "group {key}");
    }
    assert!(register.groups.len() < limits::MAX_HELD / 4000);
    let kept = [-1, -2, 0, count as i32 - 1].map(|key| register.groups.contains_key(&(key, false)));
    assert_eq!(kept, [true, false, false, true]);
    // A member of a dropped group gets an error that asks it to join again.
    let lost = register.agree(Agree { group_key: 0, ..agree(0, terms(0, 6), false) }, 3);
    assert!(matches!(&lost[..], [(3, Err(s))] if s.code == Code::FailedPrecondition), "{lost:?}");
    // Groups with waiting members are not dropped, so further groups are refused.
    let mut refused = Vec::new();
    for key in (0..count as i32).map(|key| -3 - key) {
        refused = seen(register.join(with_key(key, 2), 4));
        if !refused.is_empty() {
            break;
        }
    }
    assert!(matches!(&refused[..], [(4, Err(text))] if text.contains("use fewer group keys")), "{refused:?}");
}

#[test]
fn endless_instance_keys_and_calls_take_no_endless_memory() {
    let mut register = Groups::default();
    complete(&mut register, 2);
    let instance = |task, instance_key| Agree { instance_key, ..agree(task, terms(0, 6), false) };
    // An instance with a waiting member is kept.
    assert_eq!(register.agree(instance(0, -1), 1), []);
    for key in 0..3 * limits::MAX_INSTANCES as i32 {
        assert_eq!(register.agree(instance(0, key), 2), []);
        assert_eq!(register.agree(instance(1, key), 3).len(), 2);
    }
    let instances = &register.groups[&(1, false)].instances;
    assert!(instances.len() <= limits::MAX_INSTANCES && instances.contains_key(&-1));
    // One member calls repeatedly: callers that have given up are removed, further callers beyond the limit are
    // refused.
    for _ in 0..10_000 {
        assert_eq!(register.agree(instance(0, -1), 1000), []);
    }
    let refused = (0..10_000).find_map(|_| register.agree(instance(0, -1), 4).pop());
    assert!(matches!(&refused, Some((4, Err(s))) if s.code == Code::ResourceExhausted), "{refused:?}");
    assert!(register.groups[&(1, false)].instances[&-1].waiting.len() < 100);
}

#[test]
fn members_run_an_instance_in_a_bucket_if_all_have_the_same() {
    let mut register = Groups::default();
    complete(&mut register, 2);
    let of = |task, bucket, step_id| Agree { bucket, step_id, ..agree(task, terms(0, 6), false) };
    let all =
        |is_bucketed| [0, 1].map(|caller| (caller, Ok(Agreement { source: None, is_bucketed }))).to_vec();
    let mut meet = |buckets: [Option<i64>; 2], step_id| {
        assert_eq!(register.agree(of(0, buckets[0], step_id), 0), []);
        register.agree(of(1, buckets[1], step_id), 1)
    };
    assert_eq!(meet([Some(5), Some(5)], 1), all(true));
    // A member with another bucket replaces the instance.
    assert_eq!(meet([Some(6), Some(5)], 2), all(false));
    assert_eq!(meet([None, Some(5)], 3), all(false));
    assert_eq!(meet([Some(7), Some(7)], 4), all(true));
    // A member that has dropped its agreements gets the existing agreement.
    assert_eq!(register.agree(of(1, Some(7), 5), 1), all(true)[1..]);
}
