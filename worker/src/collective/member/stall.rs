//! The time limit of a collective, and reports of collectives that wait for long: the missing members and their
//! actions.

use super::super::standing::{Answer, Question, standing};
use super::SessionCollectives;
use super::running::{Running, awaited};
use crate::collective::register::Attendance;
use device::Error;
use device::collective::{Operation, Request, StepCollectives};
use futures::future::join_all;
use graph::{Code, DeviceName, TaskName};
use parking_lot::Mutex;
use proto::Status;
use proto::channel::RetryPolicy;
use proto::pb;
use proto::service::WorkerServiceClient;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest time before its deadline at which a collective queries the missing members for the last time.
const MAX_LEAD: Duration = Duration::from_millis(400);

/// The fraction of a collective's time limit that is reserved for the answers to its last queries, as a divisor.
const LEAD_PART: u32 = 8;

/// Time within which members must answer the queries of a collective that continues to wait.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The shortest time between two log messages about one collective.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// Time for which a member's answer is valid for the other collectives of the step.
const ANSWER_AGE: Duration = Duration::from_secs(1);

/// Number of tasks that a collective queries.
const MAX_ASKED: usize = 4;

/// Number of log messages that are remembered, so that the collectives of a step and group do not repeat them.
const MAX_LOGGED: usize = 64;

/// The reports of a session's collectives.
#[derive(Debug)]
pub(super) struct Stalls {
    /// Time after which a collective that waits is logged; it is logged again whenever the time has doubled.
    warn_after: Duration,
    /// The latest answers of tasks, by task and step.
    answers: tokio::sync::Mutex<FxHashMap<(TaskName, i64), (Instant, String)>>,
    /// The steps, groups and numbers of the latest log messages.
    logged: Mutex<VecDeque<(i64, i32, u32)>>,
}

/// A record of a waiting collective that does not hold its tensors.
#[derive(Clone, Copy)]
struct Stalled {
    question: Question,
    began: Instant,
}

impl Stalls {
    pub(super) fn new(warn_after: Duration) -> Stalls {
        Stalls { warn_after, answers: Default::default(), logged: Mutex::default() }
    }

    /// Returns whether the message with this number about a collective is to be logged: the first collective of a step
    /// and group logs it for all.
    fn is_first(&self, question: &Question, number: u32) -> bool {
        let key = (question.step_id, question.group_key, number);
        let mut logged = self.logged.lock();
        if logged.contains(&key) {
            return false;
        }
        if logged.len() == MAX_LOGGED {
            logged.pop_front();
        }
        logged.push_back(key);
        true
    }
}

impl SessionCollectives {
    /// Ends a collective with `DeadlineExceeded` after its time limit. Until then, log messages report that it waits,
    /// and the actions of the missing members.
    pub(super) fn watch(&self, step: &StepCollectives, request: &Request, run: &Arc<Running>) {
        let question = Question {
            step_id: step.id,
            group_key: request.group_key,
            is_communicator: request.placed.is_some(),
            instance_key: (request.operation != Operation::Join).then_some(request.instance_key),
        };
        let stalled = Stalled { question, began: Instant::now() };
        let (own, ended) = (self.this.clone(), run.clone());
        let lead = (run.timeout / LEAD_PART).min(MAX_LEAD);
        let first = self.stalls.warn_after.min(run.timeout - lead);
        let timer = self.runtime.spawn(async move {
            tokio::time::sleep(first).await;
            if let Some(own) = own.upgrade() {
                // The future is boxed to keep the timers small, because most collectives end before it is polled.
                Box::pin(own.report(stalled, &ended, ended.timeout - lead)).await;
            }
            ended.expire_at_last(stalled.began).await;
        });
        run.set_timer(timer.abort_handle());
    }

    /// Logs a waiting collective repeatedly until the time `last` after its start, and then queries the missing members
    /// once more for the text of the error. Ends the collective if a restarted member has replaced the group.
    async fn report(&self, stalled: Stalled, run: &Running, last: Duration) {
        let (mut at, mut number) = (self.stalls.warn_after, 0);
        while at < last {
            tokio::time::sleep(at.saturating_sub(stalled.began.elapsed())).await;
            if let Some(error) = self.find_new_group(&stalled.question, run).await {
                return run.end(Err(error));
            }
            if self.stalls.is_first(&stalled.question, number) {
                let (waits, doing) = self.observe(&stalled.question, run, ANSWER_LIMIT).await;
                let waited = stalled.began.elapsed().as_secs_f64();
                tracing::warn!("{} on {}: {waits}{doing}; has waited {waited:.1} s", run.name, self.task);
            }
            at = at.saturating_mul(2).max(at + MIN_PAUSE);
            number += 1;
        }
        tokio::time::sleep(last.saturating_sub(stalled.began.elapsed())).await;
        let limit = run.timeout.saturating_sub(stalled.began.elapsed());
        *run.doing.lock() = self.observe(&stalled.question, run, limit).await.1;
    }

    /// Returns the `Aborted` error of a collective whose members have agreed, if the leader waits again for members of the
    /// group: a member has joined it from a new session, after its program has restarted.
    async fn find_new_group(&self, question: &Question, run: &Running) -> Option<Error> {
        run.course.lock().as_ref()?;
        let seen = self.ask_leader(question, Instant::now() + ANSWER_LIMIT).await?;
        let group = question.group_key;
        let text = || {
            format!(
                "group {group} was begun anew by a member whose program has restarted: {}; the next step joins it",
                seen.who_has_joined()
            )
        };
        (!seen.is_complete()).then(|| Error::new(Code::Aborted, text()))
    }

    /// Returns two texts: the members for which a collective waits, and their actions. The second text also says which
    /// members have not answered within `limit`.
    async fn observe(&self, question: &Question, run: &Running, limit: Duration) -> (String, String) {
        let end = Instant::now() + limit;
        let course = run.course.lock().clone();
        if let Some(course) = course {
            let missing: Vec<TaskName> = course.awaited().iter().map(|m| m.name.task_name()).collect();
            return (awaited(&course), self.doings("", missing, question, end).await);
        }
        // The leader gets half of the time limit, the members the other half.
        let Some(seen) = self.ask_leader(question, Instant::now() + limit / 2).await else {
            return ("the leader of its group has not answered".into(), String::new());
        };
        let task_of = |device: &String| DeviceName::parse(device).ok().map(|name| name.task_name());
        if seen.is_complete() {
            let missing = seen.missing.iter().filter_map(task_of).collect();
            return (seen.who_is_missing(), self.doings("", missing, question, end).await);
        }
        let come: Vec<TaskName> = seen.come.iter().filter_map(task_of).collect();
        let is_like_them = |task: &TaskName| come.iter().any(|other| other.job == task.job);
        let others = self.peers.tasks().filter(|task| is_like_them(task) && !come.contains(task));
        let doing = self.doings("not among them: ", others.collect(), question, end).await;
        (seen.who_has_joined(), doing)
    }

    /// Returns the leader's knowledge of the group; `None` if the leader does not answer in time.
    async fn ask_leader(&self, question: &Question, end: Instant) -> Option<Attendance> {
        let leader = self.leader.as_ref()?;
        if *leader == self.task {
            let group = (question.group_key, question.is_communicator);
            return self.own.attendance(group, question.instance_key);
        }
        self.ask(leader, question, end).await.ok()??.attendance()
    }

    /// Returns a text about the nodes in which tasks wait, after a separator and `prefix`; empty if there are no tasks.
    async fn doings(
        &self,
        prefix: &str,
        mut tasks: Vec<TaskName>,
        question: &Question,
        end: Instant,
    ) -> String {
        tasks.sort();
        tasks.dedup();
        if tasks.is_empty() {
            return String::new();
        }
        let more = tasks.len().saturating_sub(MAX_ASKED);
        tasks.truncate(MAX_ASKED);
        let Ok(mut answers) = tokio::time::timeout_at(end.into(), self.stalls.answers.lock()).await else {
            return String::new();
        };
        answers.retain(|_, (at, _)| at.elapsed() < ANSWER_AGE);
        let open = tasks.iter().filter(|task| !answers.contains_key(&((*task).clone(), question.step_id)));
        let asked = open.map(|task| async move { (task.clone(), self.doing(task, question, end).await) });
        for (task, text) in join_all(asked).await {
            answers.insert((task, question.step_id), (Instant::now(), text));
        }
        let text = |task| {
            let key = (task, question.step_id);
            let text = answers.get(&key).map_or("", |(_, text)| text);
            format!("{}: {text}", key.0)
        };
        let mut texts: Vec<String> = tasks.into_iter().map(text).collect();
        if more > 0 {
            texts.push(format!("and {more} more"));
        }
        format!("; {prefix}{}", texts.join("; "))
    }

    /// Returns a text about a task's progress in the step of a question.
    async fn doing(&self, task: &TaskName, question: &Question, end: Instant) -> String {
        if *task == self.task {
            return standing(&self.steps, question.step_id);
        }
        match self.ask(task, question, end).await {
            Ok(Some(answer)) => answer.text,
            Ok(None) => "it is a server of TensorFlow, which cannot be asked".into(),
            Err(status) if status.code == Code::DeadlineExceeded => "it does not answer".into(),
            Err(status) => format!("it cannot be asked: {}", status.message),
        }
    }

    /// Sends a question to a task; `None` if the task is a server of TensorFlow.
    async fn ask(
        &self,
        task: &TaskName,
        question: &Question,
        end: Instant,
    ) -> Result<Option<Answer>, Status> {
        let peer = self.peers.task(task)?;
        let status = peer.call("GetStatus", RetryPolicy::Never, Some(end), |channel| {
            let mut call = tonic::Request::new(pb::GetStatusRequest {});
            question.add_to(call.metadata_mut());
            async move { WorkerServiceClient::new(channel).get_status(call).await }
        });
        Ok(Answer::of(status.await?.metadata()))
    }
}
