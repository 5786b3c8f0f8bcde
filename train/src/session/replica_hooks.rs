//! All hooks of a replica, in the order of each occasion.

use super::replica::ReplicaHook;
use super::{Hook, HookContext};
use crate::error::Result;

/// The replica's own hook, whose thread runs before others take steps, and those that it was given.
pub(super) struct ReplicaHooks {
    own: ReplicaHook,
    given: Vec<Box<dyn Hook>>,
}

impl ReplicaHooks {
    pub(super) fn new(own: ReplicaHook, given: Vec<Box<dyn Hook>>) -> ReplicaHooks {
        ReplicaHooks { own, given }
    }

    pub(super) fn all(&mut self) -> impl DoubleEndedIterator<Item = &mut dyn Hook> {
        let given = self.given.iter_mut().map(|hook| &mut **hook as &mut dyn Hook);
        std::iter::once(&mut self.own as &mut dyn Hook).chain(given)
    }

    pub(super) fn len(&self) -> usize {
        1 + self.given.len()
    }

    pub(super) fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.all().try_for_each(|hook| hook.after_create_session(context))
    }

    pub(super) fn before_recovery(&mut self, context: &HookContext<'_>) {
        self.all().for_each(|hook| hook.before_recovery(context));
    }

    /// The replica's own comes last: what it says to others is that all is safe.
    pub(super) fn settle(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.all().rev().try_for_each(|hook| hook.settle(context))
    }

    /// What is saved at the end is what the other replicas have left, who learn then that it is safe, if it is. A failure
    /// keeps no hook from its end.
    pub(super) fn end(&mut self, context: &HookContext<'_>) -> Vec<Result<()>> {
        let mut ended = vec![self.own.finish(context)];
        ended.extend(self.given.iter_mut().rev().map(|hook| hook.end(context)));
        if !context.is_chief || ended.iter().all(Result::is_ok) {
            ended.push(self.own.leave(context));
        }
        ended
    }
}
