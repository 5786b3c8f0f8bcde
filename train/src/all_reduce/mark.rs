//! A flag beside a worker's variables, the mark, which is true while the variables are **torn**: not all of them have
//! the values of one step.
//!
//! A step that is cancelled while it updates the variables, because a worker is lost, leaves some variables with the
//! update and some without, and the step is not counted. An interrupted transfer or restoration has the same effect.
//! The mark is set before the first variable changes, and cleared when all have changed and the step is counted.

use crate::initializer::Initializer;
use crate::variables::{Variable, Variables};
use graph::{Bool8, DType, NodeId, Output, Scope};

/// The name of the mark. It is not saved: checkpoints are the same for all strategies.
const NAME: &str = "all_reduce_torn";

/// The mark of a worker's variables, a scalar `bool` on its task.
#[derive(Clone, Debug)]
pub(super) struct TornMark {
    mark: Variable,
    /// True if the variables are torn. A mark without a value means that the worker has begun no update.
    pub(super) is_torn: Output,
}

impl TornMark {
    /// Adds the mark of `variables`.
    pub(super) fn build(variables: &Variables) -> TornMark {
        let scope = variables.scope();
        let first = Initializer::Value(Bool8::from(false).into());
        let mark = Variables::new(scope).get_untrained(NAME, DType::Bool, &[], &first);
        let beside = scope.colocate_with(mark.handle.node).name_scope(NAME);
        let is_marked = beside.op("VarIsInitializedOp").input(mark.handle).output();
        let read = |branch: &Scope| {
            vec![branch.colocate_with(mark.handle.node).read_variable(mark.handle, DType::Bool)]
        };
        let is_torn = beside.cond(is_marked, read, |branch| vec![branch.constant(false)]);
        TornMark { is_torn: is_torn.first().copied().unwrap_or(is_marked), mark }
    }

    /// Adds the node that sets the mark.
    pub(super) fn set(&self, scope: &Scope) -> NodeId {
        self.assign(&scope.name_scope("tear"), true)
    }

    /// Adds the node that clears the mark.
    pub(super) fn clear(&self, scope: &Scope) -> NodeId {
        self.assign(&scope.name_scope("mend"), false)
    }

    fn assign(&self, scope: &Scope, is_torn: bool) -> NodeId {
        let beside = scope.colocate_with(self.mark.handle.node);
        beside.assign_variable(self.mark.handle, beside.constant(is_torn))
    }
}
