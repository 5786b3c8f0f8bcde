//! Staged updates: new values are computed in separate variables, and then assigned to the model's variables (the
//! commit). Both phases can be repeated, so that an interrupted update loses nothing.

use crate::variables::Variable;
use graph::{DType, NodeId, Output, PartialShape, Scope};
use std::cell::RefCell;

/// The mode of an update: in place, or staged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UpdateMode<'a> {
    /// The update writes the model's variables.
    InPlace,
    /// The update writes staged values, which a commit assigns to the model's variables.
    Staged(&'a StagedUpdate),
}

/// The variable that an update writes: the model's variable, or the variable of its staged value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteTarget {
    pub(crate) handle: Output,
    /// The node that initialises the staged value.
    initializer: Option<NodeId>,
}

/// The staged values of an update, each in a variable on the device of the model's variable. A staged value shares the
/// memory of the model's variable until it is changed.
#[derive(Debug)]
pub(crate) struct StagedUpdate {
    /// The scope in which the variables of staged values and the commit are added; it has no control inputs.
    scope: Scope,
    /// True if a sparse gradient stages only the rows that it changes. It must be false if a node reads the new value
    /// of a whole variable ([`UpdateMode::new_value`]).
    rows_only: bool,
    values: RefCell<Vec<StagedValue>>,
}

/// The new value of a variable, or of some of its rows, before the commit.
#[derive(Clone, Debug)]
struct StagedValue {
    /// The model's variable, to which the commit assigns the staged value.
    original: Variable,
    target: WriteTarget,
    /// The indices of the staged rows, or `None` if the whole variable is staged.
    rows: Option<Output>,
}

/// The indices of the staged rows of a variable, in a separate variable from which the commit reads them.
struct StagedRows {
    handle: Output,
    /// The node that assigns the indices to the separate variable.
    save_node: NodeId,
}

impl UpdateMode<'_> {
    /// Returns the target of a write to the whole of `variable`.
    pub(crate) fn whole_target(&self, scope: &Scope, variable: &Variable) -> WriteTarget {
        match self {
            UpdateMode::InPlace => WriteTarget { handle: variable.handle, initializer: None },
            UpdateMode::Staged(staged) => {
                let now = || scope.read_variable(variable.handle, variable.dtype);
                staged.stage(scope, variable, PartialShape::from(&variable.shape), now, None)
            }
        }
    }

    /// Returns the targets of a write to `rows` of a variable and of its slots, and the indices of these rows
    /// in the targets. Each row must occur once in `rows`.
    pub(crate) fn row_targets(
        &self,
        scope: &Scope,
        variable: &Variable,
        slots: &[Variable],
        rows: Output,
    ) -> (Vec<WriteTarget>, Output) {
        let all = std::iter::once(variable).chain(slots);
        match self {
            UpdateMode::Staged(staged) if staged.rows_only => {
                let staged_rows = staged.stage_rows(scope, variable, rows);
                let target = |variable: &Variable| {
                    let now = || scope.resource_gather(variable.handle, rows, variable.dtype);
                    staged.stage(scope, variable, PartialShape::unknown(), now, Some(&staged_rows))
                };
                let count = scope.cast(scope.size_of(rows), DType::Int64);
                let indices = scope.range(scope.constant(0i64), count, scope.constant(1i64));
                (all.map(target).collect(), indices)
            }
            _ => (all.map(|variable| self.whole_target(scope, variable)).collect(), rows),
        }
    }

    /// Returns whether a sparse gradient stages only the rows that it changes.
    pub(crate) fn can_stage_rows(&self) -> bool {
        matches!(self, UpdateMode::Staged(staged) if staged.rows_only)
    }

    /// Returns the handle of the variable that holds the new value of `variable` after the update's writes.
    pub(crate) fn new_value(&self, variable: &Variable) -> Output {
        let staged = match self {
            UpdateMode::InPlace => None,
            UpdateMode::Staged(staged) => staged.find(variable),
        };
        staged.map_or(variable.handle, |value| value.target.handle)
    }
}

impl WriteTarget {
    /// Returns `scope` with a control input on the node that initialises the target, after which writes may
    /// run.
    pub(crate) fn after(&self, scope: &Scope) -> Scope {
        scope.control(self.initializer.as_slice())
    }
}

impl StagedUpdate {
    /// Returns an empty staged update. `scope` must have no control inputs.
    pub(crate) fn new(scope: &Scope, rows_only: bool) -> StagedUpdate {
        StagedUpdate { scope: scope.clone(), rows_only, values: RefCell::default() }
    }

    /// Returns the staged value of a variable, if there is one.
    fn find(&self, variable: &Variable) -> Option<StagedValue> {
        self.values.borrow().iter().find(|value| value.original.name == variable.name).cloned()
    }

    /// Returns the write target for the staged value of a variable, which is added if there is none. A new staged value
    /// is initialised to `now`: the current value of the variable or, with `rows`, the current values of the rows that
    /// the update writes.
    fn stage(
        &self,
        scope: &Scope,
        variable: &Variable,
        shape: PartialShape,
        now: impl FnOnce() -> Output,
        rows: Option<&StagedRows>,
    ) -> WriteTarget {
        if let Some(staged) = self.find(variable) {
            return staged.target;
        }
        let name = format!("{}/sync_rep_next", variable.name);
        let handle = self.handle(variable, &name, variable.dtype, shape);
        let after = rows.map(|staged_rows| staged_rows.save_node);
        let initializer = Some(scope.control(after.as_slice()).assign_variable(handle, now()));
        let target = WriteTarget { handle, initializer };
        self.values.borrow_mut().push(StagedValue {
            original: variable.clone(),
            target,
            rows: rows.map(|staged_rows| staged_rows.handle),
        });
        target
    }

    /// Adds a separate variable and a node that assigns `rows` to it: the indices of the rows of `variable` whose new
    /// values are staged. The commit reads the indices from the separate variable.
    fn stage_rows(&self, scope: &Scope, variable: &Variable, rows: Output) -> StagedRows {
        let name = format!("{}/sync_rep_next/rows", variable.name);
        let handle = self.handle(variable, &name, DType::Int64, PartialShape::unknown());
        StagedRows { handle, save_node: scope.assign_variable(handle, rows) }
    }

    /// Adds a variable without an initializer on the device of `beside`, and returns its handle.
    fn handle(&self, beside: &Variable, name: &str, dtype: DType, shape: PartialShape) -> Output {
        let scope = self.scope.colocate_with(beside.handle.node);
        let handle = scope.op("VarHandleOp").name(name).attr("dtype", dtype).attr("shape", shape);
        handle.attr("shared_name", name).output()
    }

    /// Adds the nodes that assign the staged values to the variables. The nodes give the same result when they run
    /// again, as long as the staged values are unchanged.
    pub(super) fn commit(&self) -> Vec<(Variable, NodeId)> {
        let commit = |staged: &StagedValue| {
            let beside = self.scope.colocate_with(staged.original.handle.node);
            let value = beside.read_variable(staged.target.handle, staged.original.dtype);
            let done = match staged.rows {
                None => beside.assign_variable(staged.original.handle, value),
                Some(rows) => {
                    let rows = beside.read_variable(rows, DType::Int64);
                    beside.resource_scatter_update(staged.original.handle, rows, value)
                }
            };
            (staged.original.clone(), done)
        };
        self.values.borrow().iter().map(commit).collect()
    }
}
