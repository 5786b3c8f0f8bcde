//! What a session runs: whole steps, steps in parts, and callables.

use super::{Session, closed_by_client};
use crate::callables::{self, Callable};
use crate::options::{check_partial, executor_options};
use crate::partial_run::PartialRun;
use crate::plan::{Keep, Plan, PlanRequest};
use crate::signature::{Signature, without_zero_port};
use crate::step::{Call, Step, metadata, wait_until};
use graph::{Code, Tensor};
use proto::link::{Extent, PartialRunSetup, RunCallable, RunCallableOutcome, RunStep, RunStepOutcome};
use proto::{Status, pb};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps in parts that a session may have begun and not ended.
const MOST_PARTIAL_RUNS: usize = 10_000;

impl Session {
    /// Runs one step, or a part of one; ends early when the session is closed or the deadline passes.
    pub(crate) async fn run_step(self: &Arc<Self>, step: RunStep) -> Result<RunStepOutcome, Status> {
        let deadline = self.deadline(&step.options, step.deadline);
        match step.partial_run.clone() {
            None => self.until_closed(self.run_whole(step, deadline)).await,
            Some(handle) => self.until_closed(self.run_part(&handle, step, deadline)).await,
        }
    }

    /// Runs a call of the session until it is closed.
    async fn until_closed<T>(&self, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        let _token = self.steps.token();
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(self.end.get().cloned().unwrap_or_else(closed_by_client)),
            result = call => result,
        }
    }

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

    async fn run_whole(
        self: &Arc<Self>,
        run: RunStep,
        deadline: Option<Instant>,
    ) -> Result<RunStepOutcome, Status> {
        self.engine.reported.run(&run.options);
        let options = executor_options(&run.options, &self.config)?;
        let feeds = || run.feeds.iter().map(|feed| &feed.0);
        let signature = Signature::new(feeds(), &run.fetches, &run.targets);
        let asked = || pb::CallableOptions {
            feed: feeds().cloned().collect(),
            fetch: run.fetches.clone(),
            target: run.targets.clone(),
            run_options: Some(run.options.clone()),
            ..Default::default()
        };
        let plan = self.cached_plan(signature, asked, deadline).await?;
        let exchange = plan.exchange(run.feeds, &run.fetches)?;
        let step = Step::new(plan, self.runtime.clone());
        let call = Call { exchange, options, extent: Extent::Whole, deadline };
        let (values, metadata) = run_call(&step, call, &run.fetches).await?;
        Ok(RunStepOutcome { fetches: run.fetches.into_iter().zip(values).collect(), metadata })
    }

    /// Prepares a step that will run in parts.
    pub(crate) async fn partial_run_setup(
        self: &Arc<Self>,
        setup: PartialRunSetup,
    ) -> Result<Arc<str>, Status> {
        self.until_closed(async {
            let graph = self.state.lock().placed.clone();
            let signature = Signature::new(&setup.feeds, &setup.fetches, &setup.targets);
            let asked = || pb::CallableOptions {
                feed: setup.feeds.clone(),
                fetch: setup.fetches.clone(),
                target: setup.targets.clone(),
                ..Default::default()
            };
            let plan = self.cached_plan(signature, asked, None).await?;
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

    /// Runs a part. The step ends with the last of its parts, and with the first that fails while it runs.
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
        let exchange = run.step.plan.exchange(part.feeds, &part.fetches)?;
        let options = pb::ExecutorOpts::default();
        // A part that is given up ends the step, as one that fails does.
        let mut ends = EndsPartialRun { session: self, handle: Some(handle) };
        let (values, _) =
            run_call(&run.step, Call { exchange, options, extent, deadline }, &part.fetches).await?;
        if extent == Extent::Part {
            ends.handle = None;
        }
        Ok(RunStepOutcome { fetches: part.fetches.into_iter().zip(values).collect(), metadata: None })
    }

    /// Plans a step that will be run many times.
    pub(crate) async fn make_callable(self: &Arc<Self>, options: pb::CallableOptions) -> Result<i64, Status> {
        callables::check(&options)?;
        let run_options = options.run_options.clone().unwrap_or_default();
        self.engine.reported.run(&run_options);
        executor_options(&run_options, &self.config)?;
        self.until_closed(async {
            let deadline = self.deadline(&run_options, None);
            let plan = self.runtime.spawn(Plan::make(self.plan_request(options.clone(), deadline)));
            let lost = |e| Err(Status::new(Code::Internal, format!("the master's planning failed: {e}")));
            let plan = Arc::new(plan.await.unwrap_or_else(lost)?);
            Ok(self.callables.add(Callable { plan, options }))
        })
        .await
    }

    /// Runs a callable with one value a feed.
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
        let exchange = callable.plan.exchange(feeds.iter().zip(run.feeds), fetches)?;
        let step = Step::new(callable.plan.clone(), self.runtime.clone());
        let call = Call { exchange, options, extent: Extent::Whole, deadline };
        let (fetches, metadata) = self.until_closed(run_call(&step, call, fetches)).await?;
        Ok(RunCallableOutcome { fetches, metadata })
    }

    pub(crate) fn release_callable(&self, handle: i64) -> Result<(), Status> {
        self.callables.release(handle)
    }

    fn plan_request(&self, step: pb::CallableOptions, deadline: Option<Instant>) -> PlanRequest {
        let bare = |names: Vec<String>| names.iter().map(|n| without_zero_port(n).to_owned()).collect();
        let (graph, cluster) = {
            let state = self.state.lock();
            (state.placed.clone(), state.cluster.clone())
        };
        let (session, closed) = (self.handle.clone(), self.closed.clone());
        PlanRequest {
            keep: Keep { session, closed, runtime: self.runtime.clone() },
            graph,
            cluster,
            engine: self.engine.clone(),
            config: self.config.clone(),
            step: pb::CallableOptions { feed: bare(step.feed), fetch: bare(step.fetch), ..step },
            deadline,
        }
    }

    /// The plan for a step's signature: from the cache, or made now of what was asked for.
    async fn cached_plan(
        self: &Arc<Self>,
        signature: Signature,
        asked: impl FnOnce() -> pb::CallableOptions,
        deadline: Option<Instant>,
    ) -> Result<Arc<Plan>, Status> {
        let make = || Plan::make(self.plan_request(asked(), None));
        tokio::select! {
            biased;
            plan = self.plans.get(&self.runtime, signature, make) => plan,
            () = wait_until(deadline) => Err(Status::new(
                Code::DeadlineExceeded,
                format!("The step was not planned and registered by its deadline; session {}", self.handle),
            )),
        }
    }
}

/// Forgets a partial run, unless told that it goes on.
struct EndsPartialRun<'a> {
    session: &'a Session,
    handle: Option<&'a str>,
}

impl Drop for EndsPartialRun<'_> {
    fn drop(&mut self) {
        let ended = self.handle.and_then(|handle| self.session.partial_runs.lock().by_handle.remove(handle));
        drop(ended);
    }
}

/// Runs a call of a step; the fetched values in order, and what was recorded.
async fn run_call(
    step: &Step,
    call: Call,
    fetches: &[String],
) -> Result<(Vec<Tensor>, Option<pb::RunMetadata>), Status> {
    let options = call.options;
    let mut outcomes = step.run(call).await?;
    let metadata = metadata(&mut outcomes, &options);
    Ok((step.plan.fetched(fetches, outcomes)?, metadata))
}

pub(crate) fn no_partial_run() -> Status {
    Status::invalid("Must run PartialRunSetup before performing partial runs")
}
