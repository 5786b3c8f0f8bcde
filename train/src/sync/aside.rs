//! An update that is prepared aside, then committed: both can be done again, so that what is cut off costs nothing.

use crate::variables::Variable;
use graph::{DType, NodeId, Output, PartialShape, Scope};
use std::cell::RefCell;

/// Where an update writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Writes<'a> {
    /// To the variables.
    InPlace,
    /// To next values of them.
    Aside(&'a Aside),
}

/// What stands for a variable in an update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) handle: Output,
    /// It has its value after this.
    filled: Option<NodeId>,
}

/// Next values of variables, each in a variable of its own beside. They share memory with what they are next values of
/// until they change.
#[derive(Debug)]
pub(crate) struct Aside {
    /// Where nothing is waited for.
    scope: Scope,
    /// Whether gradients of rows have next values of those rows alone: not where something reads the whole of what an
    /// update has changed ([`Writes::changed`]).
    rows_alone: bool,
    next: RefCell<Vec<Next>>,
}

#[derive(Clone, Debug)]
struct Next {
    of: Variable,
    target: Target,
    /// Which rows of the variable they are, where they are not the whole.
    rows: Option<Output>,
}

/// Rows that are kept for the commit.
struct Saved {
    handle: Output,
    is_saved: NodeId,
}

impl Writes<'_> {
    /// What is to be changed instead of all of `variable`.
    pub(crate) fn whole(&self, scope: &Scope, variable: &Variable) -> Target {
        match self {
            Writes::InPlace => Target { handle: variable.handle, filled: None },
            Writes::Aside(aside) => {
                let now = || scope.read_variable(variable.handle, variable.dtype);
                aside.next(scope, variable, PartialShape::from(&variable.shape), now, None)
            }
        }
    }

    /// What is to be changed instead of these rows, each of which is there once, of a variable and its slots; and which
    /// rows they are in that.
    pub(crate) fn rows(
        &self,
        scope: &Scope,
        variable: &Variable,
        slots: &[Variable],
        rows: Output,
    ) -> (Vec<Target>, Output) {
        let all = std::iter::once(variable).chain(slots);
        match self {
            Writes::Aside(aside) if aside.rows_alone => {
                let saved = aside.save(scope, variable, rows);
                let of = |variable: &Variable| {
                    let now = || scope.resource_gather(variable.handle, rows, variable.dtype);
                    aside.next(scope, variable, PartialShape::unknown(), now, Some(&saved))
                };
                let count = scope.cast(scope.size_of(rows), DType::Int64);
                let places = scope.range(scope.constant(0i64), count, scope.constant(1i64));
                (all.map(of).collect(), places)
            }
            _ => (all.map(|variable| self.whole(scope, variable)).collect(), rows),
        }
    }

    /// Whether what changes rows has next values of those rows, and not of the whole.
    pub(crate) fn has_rows_alone(&self) -> bool {
        matches!(self, Writes::Aside(aside) if aside.rows_alone)
    }

    /// Where the new value of `variable` is, once what changes it is done.
    pub(crate) fn changed(&self, variable: &Variable) -> Output {
        let aside = match self {
            Writes::InPlace => None,
            Writes::Aside(aside) => aside.find(variable),
        };
        aside.map_or(variable.handle, |next| next.target.handle)
    }
}

impl Target {
    /// Where it may be changed.
    pub(crate) fn after(&self, scope: &Scope) -> Scope {
        scope.control(self.filled.as_slice())
    }
}

impl Aside {
    /// Without any yet; `scope` is one where nothing is waited for.
    pub(crate) fn new(scope: &Scope, rows_alone: bool) -> Aside {
        Aside { scope: scope.clone(), rows_alone, next: RefCell::default() }
    }

    fn find(&self, variable: &Variable) -> Option<Next> {
        self.next.borrow().iter().find(|next| next.of.name == variable.name).cloned()
    }

    /// The next value of a variable, which is what the variable has `now` until it changes; of `rows`, that of these.
    fn next(
        &self,
        scope: &Scope,
        variable: &Variable,
        shape: PartialShape,
        now: impl FnOnce() -> Output,
        rows: Option<&Saved>,
    ) -> Target {
        if let Some(next) = self.find(variable) {
            return next.target;
        }
        let name = format!("{}/sync_rep_next", variable.name);
        let handle = self.handle(variable, &name, variable.dtype, shape);
        let after = rows.map(|saved| saved.is_saved);
        let filled = Some(scope.control(after.as_slice()).assign_variable(handle, now()));
        let target = Target { handle, filled };
        self.next.borrow_mut().push(Next {
            of: variable.clone(),
            target,
            rows: rows.map(|saved| saved.handle),
        });
        target
    }

    /// Keeps which rows next values are of.
    fn save(&self, scope: &Scope, variable: &Variable, rows: Output) -> Saved {
        let name = format!("{}/sync_rep_next/rows", variable.name);
        let handle = self.handle(variable, &name, DType::Int64, PartialShape::unknown());
        Saved { handle, is_saved: scope.assign_variable(handle, rows) }
    }

    /// A variable beside another, which nothing initialises.
    fn handle(&self, beside: &Variable, name: &str, dtype: DType, shape: PartialShape) -> Output {
        let scope = self.scope.colocate_with(beside.handle.node);
        let handle = scope.op("VarHandleOp").name(name).attr("dtype", dtype).attr("shape", shape);
        handle.attr("shared_name", name).output()
    }

    /// The variables become their next values. What of this is done each time it runs is the same until the next
    /// values are others.
    pub(super) fn commit(&self) -> Vec<(Variable, NodeId)> {
        let commit = |next: &Next| {
            let beside = self.scope.colocate_with(next.of.handle.node);
            let value = beside.read_variable(next.target.handle, next.of.dtype);
            let done = match next.rows {
                None => beside.assign_variable(next.of.handle, value),
                Some(rows) => {
                    let rows = beside.read_variable(rows, DType::Int64);
                    beside.resource_scatter_update(next.of.handle, rows, value)
                }
            };
            (next.of.clone(), done)
        };
        self.next.borrow().iter().map(commit).collect()
    }
}
