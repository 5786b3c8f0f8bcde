//! All hooks of a replica, in the order for each event.

use super::replica_hook::ReplicaHook;
use super::{Hook, HookContext};
use crate::error::Result;

/// The hooks of a session: the replica's coordination hook, whose thread starts before any hook runs a step, and the
/// hooks of the user.
pub(super) struct ReplicaHooks {
    replica_hook: ReplicaHook,
    user_hooks: Vec<Box<dyn Hook>>,
}

impl ReplicaHooks {
    /// Combines the hooks.
    pub(super) fn new(replica_hook: ReplicaHook, user_hooks: Vec<Box<dyn Hook>>) -> ReplicaHooks {
        ReplicaHooks { replica_hook, user_hooks }
    }

    /// Returns all hooks, the replica's first.
    pub(super) fn all(&mut self) -> impl DoubleEndedIterator<Item = &mut dyn Hook> {
        let user_hooks = self.user_hooks.iter_mut().map(|hook| &mut **hook as &mut dyn Hook);
        std::iter::once(&mut self.replica_hook as &mut dyn Hook).chain(user_hooks)
    }

    /// Returns the number of hooks.
    pub(super) fn len(&self) -> usize {
        1 + self.user_hooks.len()
    }

    /// Runs all hooks after a session has been opened.
    pub(super) fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.all().try_for_each(|hook| hook.after_create_session(context))
    }

    /// Runs all hooks before a session is given up.
    pub(super) fn before_recovery(&mut self, context: &HookContext<'_>) {
        self.all().for_each(|hook| hook.before_recovery(context));
    }

    /// Runs all hooks at the job's last step. The replica's comes last, because it reports to the others that
    /// everything is saved.
    pub(super) fn after_last_step(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.all().rev().try_for_each(|hook| hook.after_last_step(context))
    }

    /// Runs all hooks at the end. The checkpoint is saved after all replicas have finished, and only a chief
    /// that has saved it reports so. A failing hook does not prevent the others from running.
    pub(super) fn end(&mut self, context: &HookContext<'_>) -> Vec<Result<()>> {
        let mut ended = vec![self.replica_hook.finish(context)];
        ended.extend(self.user_hooks.iter_mut().rev().map(|hook| hook.end(context)));
        if !context.is_chief || ended.iter().all(Result::is_ok) {
            ended.push(self.replica_hook.leave(context));
        }
        ended
    }
}
