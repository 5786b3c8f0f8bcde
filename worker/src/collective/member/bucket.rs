//! Buckets: reductions of a device that the members of a group carry out in one exchange, if all members have the same
//! bucket.

use super::running::Running;
use super::{Exchange, Group, GroupKey, Known, SessionCollectives, group_key, renewal};
use crate::collective::course::Renew;
use crate::collective::register::Terms;
use device::cancel::Registration;
use device::collective::{Finish, Request, StepCollectives};
use device::{Error, Result, Value};
use graph::tensor::ALIGNMENT;
use graph::{BucketPlace, Shape, Tensor};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// The largest number of nodes of a bucket that an error message names.
const MAX_NAMED: usize = 8;

/// A bucket in a step: the step's id, the member, and the bucket's digest.
type Key = (i64, GroupKey, i64);

/// The buckets of which some requests have been made and others are missing.
#[derive(Default)]
pub(super) struct Buckets(Mutex<FxHashMap<Key, Collected>>);

/// The requests of a bucket that have been made.
struct Collected {
    /// The requests by their numbers in the bucket; `None` for those that are missing.
    parts: Vec<Option<Part>>,
    missing: usize,
    /// True if other members do not have the same bucket: each request then runs alone, without waiting for the others.
    is_divided: bool,
    on_cancel: Registration,
}

/// A request of a bucket, and the callback for its output.
pub(super) struct Part {
    request: Request,
    finish: Finish,
}

/// The effect of a request on its bucket.
enum Collection {
    /// The bucket's requests run one by one.
    Divided(Box<Part>),
    /// All requests of the bucket have been made.
    Complete(Vec<Part>),
    /// Other requests of the bucket are missing, or this request has failed.
    Waits,
}

/// A bucket on which the members agree: on each of its instances, as for an instance outside buckets, and on the bucket
/// itself.
pub(super) struct Bucket {
    digest: i64,
    requests: Vec<Request>,
    runs: Vec<Arc<Running>>,
    /// True if a member may have sent a notice under the bucket's name in this step.
    is_renewed: bool,
    answers: Mutex<Answers>,
}

/// The leader's answers for a bucket.
struct Answers {
    /// The instances that all members have in the same bucket.
    gathered: Vec<usize>,
    /// Number of instances without an answer.
    missing: usize,
}

/// Returns the name of a bucket's exchange in the keys of its transfers.
pub(super) fn name(group_key: i32, digest: i64) -> String {
    format!("bucket:{group_key}:{digest:x}")
}

impl SessionCollectives {
    /// Takes part in a collective that is in a bucket, once all requests of the bucket have been made.
    pub(super) fn start_in_bucket(
        &self,
        step: &StepCollectives,
        request: Request,
        place: BucketPlace,
        finish: Finish,
    ) {
        match self.collect(step, place, Part { request, finish }) {
            Collection::Divided(part) => self.start_alone(step, part.request, part.finish),
            Collection::Complete(parts) => self.start_bucket(step, parts, place.digest),
            Collection::Waits => {}
        }
    }

    fn collect(&self, step: &StepCollectives, place: BucketPlace, part: Part) -> Collection {
        let key = (step.id, group_key(&part.request), place.digest);
        let mut buckets = self.buckets.0.lock();
        let mut entry = match buckets.entry(key.clone()) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => match self.collected(step, key, place.count, &part.request) {
                Ok(collected) => entry.insert_entry(collected),
                Err(reason) => {
                    drop(buckets);
                    (part.finish)(Err(reason));
                    return Collection::Waits;
                }
            },
        };
        let collected = entry.get_mut();
        let Some(slot) = collected.parts.get_mut(place.index).filter(|slot| slot.is_none()) else {
            drop(buckets);
            (part.finish)(Err(Error::internal("two nodes have one place in a bucket")));
            return Collection::Waits;
        };
        let divided = match collected.is_divided {
            true => Some(part),
            false => {
                *slot = Some(part);
                None
            }
        };
        collected.missing -= 1;
        let complete = (collected.missing == 0).then(|| entry.remove());
        drop(buckets);
        if let Some(collected) = &complete {
            step.cancellation.deregister(collected.on_cancel);
        }
        match (divided, complete) {
            (Some(part), _) => Collection::Divided(Box::new(part)),
            (None, Some(collected)) => Collection::Complete(collected.parts.into_iter().flatten().collect()),
            (None, None) => Collection::Waits,
        }
    }

    /// Returns a bucket that has no requests yet; requests that wait in it will fail if the step is cancelled.
    fn collected(
        &self,
        step: &StepCollectives,
        key: Key,
        count: usize,
        request: &Request,
    ) -> Result<Collected> {
        let is_divided = self.is_divided(&key.1, key.2, request);
        let own = self.this.clone();
        let on_cancel = step.cancellation.register(move |reason| {
            let collected = own.upgrade().and_then(|own| own.buckets.0.lock().remove(&key));
            let parts = collected.into_iter().flat_map(|collected| collected.parts.into_iter().flatten());
            parts.for_each(|part| (part.finish)(Err(reason.clone().derived())));
        })?;
        let parts = (0..count).map(|_| None).collect();
        Ok(Collected { parts, missing: count, is_divided, on_cancel })
    }

    /// Returns whether a bucket's requests run one by one, as earlier steps have found.
    fn is_divided(&self, key: &GroupKey, digest: i64, request: &Request) -> bool {
        let agreed = self.agreed.lock();
        let has_foreign = agreed.groups.get(key).is_some_and(|group| group.is_foreign.is_some());
        let is_divided = has_foreign || agreed.divided.contains(&(key.clone(), digest));
        drop(agreed);
        if has_foreign {
            self.log_divided(request);
        }
        is_divided
    }

    /// Logs, once, that the requests of a bucket run one by one.
    fn log_divided(&self, request: &Request) {
        self.has_logged_bucket.call_once(|| {
            tracing::warn!(
                "the collectives of a bucket, '{}' among them, run one by one, because another member of group {} has \
                 other buckets or is TensorFlow's",
                request.node.name,
                request.group_key
            );
        });
    }

    fn start_bucket(&self, step: &StepCollectives, parts: Vec<Part>, digest: i64) {
        let known: Vec<Option<Known>> =
            parts.iter().map(|part| self.known(&part.request, &Terms::of(&part.request))).collect();
        let is_current = known.iter().all(|known| known.as_ref().is_some_and(|known| known.is_current));
        if is_current && let Some(Some(first)) = known.first() {
            return self.run_bucket(step, parts, first.group.clone(), digest, false);
        }
        let has_name = known.iter().flatten().any(|known| known.bucket == Some(digest));
        let Some(bucket) = self.begin_bucket(step, parts, digest, has_name) else { return };
        for (index, known) in known.into_iter().enumerate() {
            let (request, run) = (bucket.requests[index].clone(), bucket.runs[index].clone());
            self.agree_and_run(step, request, known, run, Some((bucket.clone(), index)));
        }
    }

    /// Begins the collectives of a bucket, so that the members can agree on it; `None` if the step has been cancelled.
    fn begin_bucket(
        &self,
        step: &StepCollectives,
        parts: Vec<Part>,
        digest: i64,
        is_renewed: bool,
    ) -> Option<Arc<Bucket>> {
        let (mut requests, mut runs) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
        for Part { request, finish } in parts {
            // If the step is cancelled, the collectives that have begun end with it, and the others do not begin.
            let run = Running::of_request(step, &request, self.timeout_of(&request), finish);
            run.iter().for_each(|run| self.watch(step, &request, run));
            runs.extend(run);
            requests.push(request);
        }
        let answers = Mutex::new(Answers { gathered: Vec::new(), missing: requests.len() });
        let has_begun = runs.len() == requests.len();
        has_begun.then(|| Arc::new(Bucket { digest, requests, runs, is_renewed, answers }))
    }

    /// Records that all members have an instance in the same bucket. The last answer starts the bucket's exchange.
    pub(super) fn gather(&self, step: &StepCollectives, bucket: &Bucket, index: usize, group: Group) {
        if bucket.answer(Some(index)) != Some(true) {
            return;
        }
        let parts = bucket.requests.iter().zip(&bucket.runs);
        let parts = parts
            .filter_map(|(request, run)| Some(Part { request: request.clone(), finish: run.release()? }));
        let parts: Vec<Part> = parts.collect();
        match parts.len() == bucket.requests.len() {
            true => self.run_bucket(step, parts, group, bucket.digest, bucket.is_renewed),
            false => end_all(parts, &ended_early(step)),
        }
    }

    /// Records that another member does not have an instance in the same bucket. From now on the bucket's instances run
    /// one by one.
    pub(super) fn divide(&self, bucket: &Bucket, request: &Request) {
        self.agreed.lock().divided.insert((group_key(request), bucket.digest));
        self.log_divided(request);
        bucket.answer(None);
    }

    /// Exchanges all elements of a bucket in one collective.
    fn run_bucket(
        &self,
        step: &StepCollectives,
        parts: Vec<Part>,
        group: Group,
        digest: i64,
        is_renewed: bool,
    ) {
        let Some(first) = parts.first().map(|part| part.request.clone()) else { return };
        let (text, input) = (
            description(&parts),
            match packed(&parts) {
                Ok(input) => input,
                Err(error) => return end_all(parts, &error),
            },
        );
        let parts = Arc::new(Mutex::new(parts));
        let finishing = parts.clone();
        let finish: Finish = Box::new(move |output| {
            let parts = std::mem::take(&mut *finishing.lock());
            match output {
                Ok(Value::Host(output)) => distribute(parts, &output),
                Ok(_) => end_all(parts, &Error::internal("the result of a bucket is not in host memory")),
                Err(error) => end_all(parts, &error),
            }
        });
        let Some(run) = Running::start(step, text, self.timeout_of(&first), finish) else { return };
        self.watch(step, &first, &run);
        let mut name = name(first.group_key, digest);
        let renew = match is_renewed {
            false => Some(self.renewing_bucket(step, parts, &run, digest)),
            true => {
                name.push_str(":renewed");
                None
            }
        };
        let request = Request { shape: input.shape().clone(), input: Some(input), bucket: None, ..first };
        self.exchange(step, request, group, None, &run, Exchange { name, renew });
    }

    /// Returns the callback by which a member that is running a bucket repeats the agreement on its instances.
    fn renewing_bucket(
        &self,
        step: &StepCollectives,
        parts: Arc<Mutex<Vec<Part>>>,
        run: &Arc<Running>,
        digest: i64,
    ) -> Renew {
        let (own, run, step) = (self.this.clone(), Arc::downgrade(run), step.clone());
        Box::new(move || {
            let released = run.upgrade().and_then(|run| run.release());
            let (Some(own), Some(_)) = (own.upgrade(), released) else { return };
            let parts = std::mem::take(&mut *parts.lock());
            let Some(bucket) = own.begin_bucket(&step, parts, digest, true) else { return };
            for (index, request) in bucket.requests.iter().enumerate() {
                let (run, renewal) = (bucket.runs[index].clone(), Some(renewal(request)));
                own.negotiate(step.clone(), request.clone(), run, renewal, Some((bucket.clone(), index)));
            }
        })
    }
}

impl Bucket {
    /// Records an answer of the leader: `gathered` is the number of an instance that is in this bucket on all members,
    /// `None` for an instance that is not. Returns `None` while answers are missing, then whether all instances are in
    /// this bucket on all members.
    fn answer(&self, gathered: Option<usize>) -> Option<bool> {
        let mut answers = self.answers.lock();
        answers.missing = answers.missing.saturating_sub(1);
        answers.gathered.extend(gathered);
        if answers.missing > 0 {
            return None;
        }
        let gathered = std::mem::take(&mut answers.gathered);
        drop(answers);
        let has_all = gathered.len() == self.requests.len();
        if !has_all {
            let error = Error::internal("the members of the group do not agree on a bucket");
            gathered.into_iter().for_each(|index| self.runs[index].end(Err(error.clone())));
        }
        Some(has_all)
    }
}

/// Returns the error of a bucket's collectives if one of them has ended before the exchange could begin.
fn ended_early(step: &StepCollectives) -> Error {
    let failure = step.cancellation.check().err();
    failure.unwrap_or_else(|| Error::internal("another collective of the bucket has failed").derived())
}

fn end_all(parts: Vec<Part>, error: &Error) {
    parts.into_iter().for_each(|part| (part.finish)(Err(error.clone())));
}

/// Returns a text that names the nodes of a bucket and their group.
fn description(parts: &[Part]) -> String {
    let named = parts.iter().take(MAX_NAMED).map(|part| format!("'{}'", part.request.node.name));
    let mut names = named.collect::<Vec<_>>().join(", ");
    if parts.len() > MAX_NAMED {
        names.push_str(&format!(" and {} more", parts.len() - MAX_NAMED));
    }
    let group = parts.first().map_or((0, 0), |part| (part.request.group_key, part.request.group_size));
    format!("a bucket of {} reductions, {names} (group {} of {})", parts.len(), group.0, group.1)
}

/// Returns the position of each part's elements, and the number of elements in total: each part begins at a multiple of
/// [`ALIGNMENT`] bytes, so that its result can be a view.
fn positions(parts: &[Part]) -> Result<(Vec<usize>, usize)> {
    let width = parts.first().and_then(|part| part.request.dtype.size()).unwrap_or(1);
    let (mut positions, mut next) = (Vec::with_capacity(parts.len()), 0usize);
    for part in parts {
        positions.push(next);
        let end = next.checked_add(part.request.shape.num_elements());
        let end = end.and_then(|end| end.checked_next_multiple_of((ALIGNMENT / width).max(1)));
        next = end.ok_or_else(|| Error::invalid("a bucket has too many elements"))?;
    }
    Ok((positions, next))
}

/// Copies the inputs of a bucket into one vector.
fn packed(parts: &[Part]) -> Result<Tensor> {
    let (positions, count) = positions(parts)?;
    let Some(dtype) = parts.first().map(|part| part.request.dtype) else {
        return Err(Error::internal("a bucket without reductions"));
    };
    let width = dtype.size().ok_or_else(|| Error::unimplemented(format!("collectives of {dtype}")))?;
    let mut flat = Tensor::unspecified(dtype, Shape::new(&[count])?)?;
    let mut rest = flat.bytes_mut()?;
    let ends = positions.iter().skip(1).chain([&count]);
    for ((part, position), end) in parts.iter().zip(&positions).zip(ends) {
        let (own, tail) = std::mem::take(&mut rest).split_at_mut((end - position) * width);
        let input =
            part.request.input.as_ref().ok_or_else(|| Error::internal("a reduction without an input"))?;
        let input = input.bytes()?;
        let (elements, gap) = own.split_at_mut(input.len().min(own.len()));
        elements.copy_from_slice(&input[..elements.len()]);
        gap.fill(0);
        rest = tail;
    }
    Ok(flat)
}

/// Completes the requests of a bucket with views of its result.
fn distribute(parts: Vec<Part>, output: &Tensor) {
    let positions = match positions(&parts) {
        Ok((positions, _)) => positions,
        Err(error) => return end_all(parts, &error),
    };
    for (part, position) in parts.into_iter().zip(positions) {
        let shape = part.request.shape;
        let elements = output.elements(position..position + shape.num_elements());
        let view = elements.and_then(|elements| elements.reshaped(shape));
        (part.finish)(view.map(Value::from).map_err(Error::from));
    }
}
