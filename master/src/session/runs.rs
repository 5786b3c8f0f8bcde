//! The runs of a session: whole steps, partial runs, and callables.

use super::{Session, closed_by_client};
use crate::callables::{self, Callable};
use crate::debug_run::DebugRun;
use crate::options::{check_partial, executor_options, requests_costs, watches};
use crate::partial_run::PartialRun;
use crate::plan::{Plan, PlanOwner, PlanRequest};
use crate::signature::{Signature, without_zero_port};
use crate::step::{Step, StepCall, metadata, wait_until};
use graph::{Code, Tensor};
use proto::link::{Extent, PartialRunSetup, RunCallable, RunCallableOutcome, RunStep, RunStepOutcome};
use proto::{Status, pb};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The largest number of partial runs in progress per session.
const MOST_PARTIAL_RUNS: usize = 10_000;

impl Session {
    /// Runs one step, or a part of a partial run; ends early when the session is closed or the deadline
    /// passes.
    pub(crate) async fn run_step(self: &Arc<Self>, step: RunStep) -> Result<RunStepOutcome, Status> {
        let deadline = self.deadline(&step.options, step.deadline);
        match step.partial_run.clone() {
            None => self.until_closed(self.run_whole(step, deadline)).await,
            Some(handle) => self.until_closed(self.run_part(&handle, step, deadline)).await,
        }
    }

    /// Runs a call until it ends or the session is closed.
    async fn until_closed<T>(&self, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        let _token = self.steps.token();
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(self.end.get().cloned().unwrap_or_else(closed_by_client)),
            result = call => result,
        }
    }

    /// Returns the earlier of two deadlines: the one given by the timeout in the options, and the call's own.
    fn deadline(&self, options: &pb::RunOptions, of_call: Option<Instant>) -> Option<Instant> {
        let timeout = match options.timeout_in_ms {
            0 => self.config.operation_timeout_in_ms,
            set => set,
        };
        let of_options = u64::try_from(timeout)
            .ok()
            .filter(|&ms| ms > 0)
            .map(|ms| Instant::now() + Duration::from_millis(ms));
        match (of_options, of_call) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Runs a step in one call, with the cached plan of its signature if there is one.
    async fn run_whole(
        self: &Arc<Self>,
        run: RunStep,
        deadline: Option<Instant>,
    ) -> Result<RunStepOutcome, Status> {
        self.context.ignored_options.run(&run.options);
        let mut options = executor_options(&run.options, &self.config)?;
        let number = self.steps_begun.fetch_add(1, Ordering::Relaxed) + 1;
        options.record_costs = requests_costs(&self.config, number);
        let feeds = || run.feeds.iter().map(|feed| &feed.0);
        let signature = Signature::new(feeds(), &run.fetches, &run.targets).watched_by(watches(&run.options));
        let requested = || pb::CallableOptions {
            feed: feeds().cloned().collect(),
            fetch: run.fetches.clone(),
            target: run.targets.clone(),
            run_options: Some(run.options.clone()),
            ..Default::default()
        };
        let plan = self.cached_plan(signature, requested, deadline).await?;
        let debug_run = match watches(&run.options) {
            Some(watched) => {
                let number = plan.watched_runs.fetch_add(1, Ordering::Relaxed);
                let streams = &self.context.event_streams;
                let begin = DebugRun::begin(&run, watched, number, streams, self.runtime.clone());
                Some(tokio::select! {
                    biased;
                    begun = begin => begun?,
                    () = wait_until(deadline) => return Err(Status::new(
                        Code::DeadlineExceeded,
                        format!(
                            "The debugger did not reply to the start of a step by the step's deadline; session {}, debug URLs {:?}",
                            self.handle,
                            watched.debug_tensor_watch_opts.iter().flat_map(|watch| &watch.debug_urls).collect::<BTreeSet<_>>()
                        ),
                    )),
                })
            }
            None => None,
        };
        let tensors = plan.client_tensors(run.feeds, &run.fetches)?;
        let step =
            Step::begin(plan, self.runtime.clone(), &self.context, &self.step_sequences, deadline).await?;
        let call = StepCall { tensors, options, extent: Extent::Whole, deadline };
        let result = run_call(&step, call, &run.fetches).await;
        step.end(result.as_ref().err(), &self.context).await;
        if let Some(debug_run) = debug_run {
            debug_run.end().await;
        }
        self.retained_steps.retain(step);
        let (values, metadata) = result?;
        Ok(RunStepOutcome { fetches: run.fetches.into_iter().zip(values).collect(), metadata })
    }

    /// Prepares a partial run and returns its handle.
    pub(crate) async fn partial_run_setup(
        self: &Arc<Self>,
        setup: PartialRunSetup,
    ) -> Result<Arc<str>, Status> {
        self.until_closed(async {
            let graph = self.state.lock().placed.clone();
            let signature = Signature::new(&setup.feeds, &setup.fetches, &setup.targets);
            let requested = || pb::CallableOptions {
                feed: setup.feeds.clone(),
                fetch: setup.fetches.clone(),
                target: setup.targets.clone(),
                ..Default::default()
            };
            let plan = self.cached_plan(signature, requested, None).await?;
            let run = PartialRun::new(Step::new(plan, self.runtime.clone()), graph, &setup);
            let mut runs = self.partial_runs.lock();
            if runs.by_handle.len() >= MOST_PARTIAL_RUNS {
                let text = format!("session {} has {MOST_PARTIAL_RUNS} partial runs", self.handle);
                return Err(Status::new(Code::ResourceExhausted, text));
            }
            let handle: Arc<str> = runs.begun.to_string().into();
            runs.begun += 1;
            runs.by_handle.insert(handle.clone(), Arc::new(run));
            Ok(handle)
        })
        .await
    }

    /// Runs one part of a partial run. The partial run ends with its last part, or with the first part whose
    /// run fails.
    async fn run_part(
        self: &Arc<Self>,
        handle: &str,
        part: RunStep,
        deadline: Option<Instant>,
    ) -> Result<RunStepOutcome, Status> {
        let run = self.partial_runs.lock().by_handle.get(handle).cloned();
        let run = run.ok_or_else(no_partial_run)?;
        check_partial(&part.options)?;
        let extent = run.advance(part.feeds.iter().map(|f| f.0.as_str()), &part.fetches)?;
        let tensors = run.step.plan.client_tensors(part.feeds, &part.fetches)?;
        let options = pb::ExecutorOpts::default();
        // If the part fails or is cancelled, the guard removes the partial run.
        let mut guard = PartialRunGuard { session: self, handle: Some(handle) };
        let (values, _) =
            run_call(&run.step, StepCall { tensors, options, extent, deadline }, &part.fetches).await?;
        if extent == Extent::Part {
            guard.handle = None;
        }
        Ok(RunStepOutcome { fetches: part.fetches.into_iter().zip(values).collect(), metadata: None })
    }

    /// Plans a step that will be run many times, and returns its handle.
    pub(crate) async fn make_callable(self: &Arc<Self>, options: pb::CallableOptions) -> Result<i64, Status> {
        callables::check(&options)?;
        let run_options = options.run_options.clone().unwrap_or_default();
        self.context.ignored_options.run(&run_options);
        executor_options(&run_options, &self.config)?;
        self.until_closed(async {
            let deadline = self.deadline(&run_options, None);
            let plan = self.runtime.spawn(Plan::build(self.plan_request(options.clone(), deadline)));
            let lost = |e| Err(Status::new(Code::Internal, format!("the master's planning failed: {e}")));
            let plan = Arc::new(plan.await.unwrap_or_else(lost)?);
            Ok(self.callables.add(Callable { plan, options }))
        })
        .await
    }

    /// Runs a callable with one value for each feed.
    pub(crate) async fn run_callable(
        self: &Arc<Self>,
        run: RunCallable,
    ) -> Result<RunCallableOutcome, Status> {
        let callable = self.callables.get(run.handle)?;
        let (feeds, fetches) = (&callable.options.feed, &callable.options.fetch);
        if run.feeds.len() != feeds.len() {
            let text = format!("Expected {} feed tensors, but got {}", feeds.len(), run.feeds.len());
            return Err(Status::invalid(text));
        }
        let run_options = callable.options.run_options.clone().unwrap_or_default();
        let options = executor_options(&run_options, &self.config)?;
        let deadline = self.deadline(&run_options, run.deadline);
        let tensors = callable.plan.client_tensors(feeds.iter().zip(run.feeds), fetches)?;
        let step = Step::begin(
            callable.plan.clone(),
            self.runtime.clone(),
            &self.context,
            &self.step_sequences,
            deadline,
        )
        .await?;
        let call = StepCall { tensors, options, extent: Extent::Whole, deadline };
        let result = self.until_closed(run_call(&step, call, fetches)).await;
        step.end(result.as_ref().err(), &self.context).await;
        self.retained_steps.retain(step);
        let (fetches, metadata) = result?;
        Ok(RunCallableOutcome { fetches, metadata })
    }

    /// Releases a callable.
    pub(crate) fn release_callable(&self, handle: i64) -> Result<(), Status> {
        self.callables.release(handle)
    }

    /// Returns the request for a plan of `step` with the session's current graph.
    fn plan_request(&self, step: pb::CallableOptions, deadline: Option<Instant>) -> PlanRequest {
        let bare = |names: Vec<String>| names.iter().map(|n| without_zero_port(n).to_owned()).collect();
        let (graph, cluster) = {
            let state = self.state.lock();
            (state.placed.clone(), state.cluster.clone())
        };
        let (session, closed) = (self.handle.clone(), self.closed.clone());
        PlanRequest {
            owner: PlanOwner { session, closed, runtime: self.runtime.clone() },
            graph,
            cluster,
            context: self.context.clone(),
            config: self.config.clone(),
            step: pb::CallableOptions { feed: bare(step.feed), fetch: bare(step.fetch), ..step },
            deadline,
        }
    }

    /// Returns the plan of a step's signature: the cached plan or, if there is none, a new plan for the
    /// options `requested`.
    async fn cached_plan(
        self: &Arc<Self>,
        signature: Signature,
        requested: impl FnOnce() -> pb::CallableOptions,
        deadline: Option<Instant>,
    ) -> Result<Arc<Plan>, Status> {
        let build = || Plan::build(self.plan_request(requested(), None));
        tokio::select! {
            biased;
            plan = self.plans.get(&self.runtime, signature, build) => plan,
            () = wait_until(deadline) => Err(Status::new(
                Code::DeadlineExceeded,
                format!("The step was not planned and registered by its deadline; session {}", self.handle),
            )),
        }
    }
}

/// A guard that removes a partial run on drop, unless `handle` has been set to `None`.
struct PartialRunGuard<'a> {
    session: &'a Session,
    handle: Option<&'a str>,
}

impl Drop for PartialRunGuard<'_> {
    fn drop(&mut self) {
        let ended = self.handle.and_then(|handle| self.session.partial_runs.lock().by_handle.remove(handle));
        drop(ended);
    }
}

/// Runs a plan's step for one call. Returns the fetched values in the order of `fetches`, and the recorded
/// metadata.
async fn run_call(
    step: &Step,
    call: StepCall,
    fetches: &[String],
) -> Result<(Vec<Tensor>, Option<pb::RunMetadata>), Status> {
    let options = call.options;
    let mut outcomes = step.run(call).await?;
    let metadata = metadata(&mut outcomes, &options);
    Ok((step.plan.fetched(fetches, outcomes)?, metadata))
}

/// Returns the error for a partial run that was not set up.
pub(crate) fn no_partial_run() -> Status {
    Status::invalid("Must run PartialRunSetup before performing partial runs")
}
