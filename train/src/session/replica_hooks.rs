//! The hooks of a replica as one list, with the order in which they run at each point of a session.

use super::replica_hook::ReplicaHook;
use super::{Hook, HookContext};
use crate::all_reduce::Membership;
use crate::error::Result;

/// The hooks of a session: the replica's coordination hook, whose thread starts before any hook runs a step, and the
/// hooks of the user.
pub(super) struct ReplicaHooks {
    replica_hook: ReplicaHook,
    user_hooks: Vec<Box<dyn Hook>>,
}

impl ReplicaHooks {
    /// Combines the replica's coordination hook and the user's hooks.
    pub(super) fn new(replica_hook: ReplicaHook, user_hooks: Vec<Box<dyn Hook>>) -> ReplicaHooks {
        ReplicaHooks { replica_hook, user_hooks }
    }

    /// Returns all hooks: the replica's coordination hook, then the user's hooks.
    pub(super) fn all(&mut self) -> impl DoubleEndedIterator<Item = &mut dyn Hook> {
        let user_hooks = self.user_hooks.iter_mut().map(|hook| &mut **hook as &mut dyn Hook);
        std::iter::once(&mut self.replica_hook as &mut dyn Hook).chain(user_hooks)
    }

    /// Returns the number of hooks.
    pub(super) fn len(&self) -> usize {
        1 + self.user_hooks.len()
    }

    /// Runs [`Hook::after_create_session`] of all hooks.
    pub(super) fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.all().try_for_each(|hook| hook.after_create_session(context))
    }

    /// Runs [`Hook::on_membership`] of all hooks.
    pub(super) fn on_membership(&mut self, context: &HookContext<'_>, found: &Membership) -> Result<()> {
        self.all().try_for_each(|hook| hook.on_membership(context, found))
    }

    /// Runs [`Hook::before_recovery`] of all hooks.
    pub(super) fn before_recovery(&mut self, context: &HookContext<'_>) {
        self.all().for_each(|hook| hook.before_recovery(context));
    }

    /// Runs [`Hook::after_last_step`] of all hooks. The coordination hook comes last, because it reports to the other
    /// replicas that everything is saved.
    pub(super) fn after_last_step(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.all().rev().try_for_each(|hook| hook.after_last_step(context))
    }

    /// Runs all hooks at the end of training. The last checkpoint is saved after all replicas have finished, and the
    /// chief reports it as saved only if no hook has failed. A failing hook does not prevent other hooks from running.
    pub(super) fn end(&mut self, context: &HookContext<'_>) -> Vec<Result<()>> {
        let mut ended = vec![self.replica_hook.finish(context)];
        ended.extend(self.user_hooks.iter_mut().rev().map(|hook| hook.end(context)));
        if !context.is_chief || ended.iter().all(Result::is_ok) {
            ended.push(self.replica_hook.leave(context));
        }
        ended
    }
}
