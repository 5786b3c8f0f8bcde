//! The cache of a session's plans by signature. A plan is made once, however many steps request it at the same
//! time. When the cache is full, the least recently used plan is dropped. Failures are not cached. Planning
//! continues to its end even if the step that started it is cancelled, so that the next step can use the plan.

use crate::plan::Plan;
use crate::signature::Signature;
use graph::Code;
use parking_lot::Mutex;
use proto::Status;
use rustc_hash::FxHashMap;
use std::future::Future;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;

/// The largest number of cached plans.
const MAX_PLANS: usize = 256;

/// The plans of a session.
#[derive(Debug, Default)]
pub(crate) struct PlanCache {
    state: Mutex<PlanCacheState>,
}

#[derive(Debug, Default)]
struct PlanCacheState {
    plans: FxHashMap<Signature, Entry>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    plan: Arc<OnceCell<Arc<Plan>>>,
    last_used: u64,
}

impl PlanCache {
    /// Returns the plan for a signature, made by `make` on the runtime if it is not cached.
    pub(crate) async fn get<F>(
        &self,
        runtime: &Handle,
        signature: Signature,
        make: impl FnOnce() -> F,
    ) -> Result<Arc<Plan>, Status>
    where
        F: Future<Output = Result<Plan, Status>> + Send + 'static,
    {
        let cell = self.entry(&signature);
        if let Some(plan) = cell.get() {
            return Ok(plan.clone());
        }
        let making = make();
        let spawned = runtime.spawn(async move {
            cell.get_or_try_init(|| async { making.await.map(Arc::new) }).await.cloned()
        });
        let lost = |e| Err(Status::new(Code::Internal, format!("the master's planning failed: {e}")));
        let plan = spawned.await.unwrap_or_else(lost);
        if plan.is_err() {
            self.forget_failed(&signature);
        }
        plan
    }

    /// Returns the cache's cell for the plan of a signature, which is empty until the plan is made, and marks
    /// it as recently used.
    fn entry(&self, signature: &Signature) -> Arc<OnceCell<Arc<Plan>>> {
        let mut state = self.state.lock();
        state.clock += 1;
        let now = state.clock;
        if let Some(entry) = state.plans.get_mut(signature) {
            entry.last_used = now;
            return entry.plan.clone();
        }
        if state.plans.len() >= MAX_PLANS {
            let oldest = state.plans.iter().min_by_key(|(_, e)| e.last_used).map(|(s, _)| s.clone());
            oldest.and_then(|s| state.plans.remove(&s));
        }
        let plan = Arc::new(OnceCell::new());
        state.plans.insert(signature.clone(), Entry { plan: plan.clone(), last_used: now });
        plan
    }

    /// Removes a signature whose planning has failed.
    fn forget_failed(&self, signature: &Signature) {
        let mut state = self.state.lock();
        if state.plans.get(signature).is_some_and(|e| e.plan.get().is_none()) {
            state.plans.remove(signature);
        }
    }

    /// Removes every plan.
    pub(crate) fn clear(&self) {
        self.state.lock().plans.clear();
    }
}
