//! Embedding lookups in variables partitioned by rows. Rows are gathered on the device of each part, so that
//! only these rows and their gradients are transferred.

use crate::initializer::number;
use crate::variables::{Lookup, Variable, Variables};
use graph::{DType, Error, Output, Scope};

/// The rule that assigns the rows of a partitioned variable to its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartitionStrategy {
    /// Row `i` is row `i / parts` of part `i % parts`.
    #[default]
    Mod,
    /// Each part holds consecutive rows, as a [`Partitioner`](crate::Partitioner) along axis 0 assigns them.
    Div,
}

impl Variables {
    /// Adds a lookup of the rows at `ids` (any shape, `int32` or `int64`) in the parts of a variable. The
    /// result has the shape of `ids` followed by the shape of a row. The gradient is sparse, with only the
    /// rows that were looked up.
    ///
    /// A step fails if an id is outside of the variable.
    pub fn embedding_lookup(
        &self,
        scope: &Scope,
        parts: &[Variable],
        ids: Output,
        strategy: PartitionStrategy,
    ) -> Output {
        match parts {
            [] => {
                scope.fail(Error::invalid("embedding_lookup needs a variable"));
                ids
            }
            [whole] => self.rows(scope, whole, ids),
            parts => self.rows_of_parts(scope, parts, ids, strategy),
        }
    }

    /// Adds a gather of the rows `ids` on the variable's device, and records the lookup, so that its gradient is
    /// sparse.
    fn rows(&self, scope: &Scope, variable: &Variable, ids: Output) -> Output {
        let beside = scope.colocate_with(variable.handle.node);
        let rows = beside.resource_gather(variable.handle, ids, variable.dtype);
        self.add_lookup(Lookup { variable: variable.name.clone(), indices: ids, rows });
        rows
    }

    /// Adds a lookup in several parts: distributes the ids to the parts, gathers the rows on each part's device, and
    /// restores the order of the ids.
    fn rows_of_parts(
        &self,
        scope: &Scope,
        parts: &[Variable],
        ids: Output,
        strategy: PartitionStrategy,
    ) -> Output {
        let flat = scope.reshape(ids, &[-1]);
        let (part, row) = locate_rows(scope, parts, flat, strategy);
        let part = scope.cast(part, DType::Int32);
        let count = scope.size_of(flat);
        let order = scope.range(scope.constant(0i32), count, scope.constant(1i32));
        let rows_of_part = scope.dynamic_partition(row, part, parts.len());
        let order_of_part = scope.dynamic_partition(order, part, parts.len());
        let gathered: Vec<Output> =
            parts.iter().zip(rows_of_part).map(|(part, rows)| self.rows(scope, part, rows)).collect();
        let joined = scope.dynamic_stitch(&order_of_part, &gathered);
        let inner: Vec<i32> =
            parts[0].shape.dims().iter().skip(1).map(|&d| i32::try_from(d).unwrap_or(i32::MAX)).collect();
        let shape = scope.concat(&[scope.shape_of(ids), scope.constant_vector(&inner)], 0);
        scope.op("Reshape").input(joined).input(shape).output()
    }
}

/// Returns, for each id, the part that holds its row and the index of the row in that part.
fn locate_rows(
    scope: &Scope,
    parts: &[Variable],
    ids: Output,
    strategy: PartitionStrategy,
) -> (Output, Output) {
    let n = |value: usize| number(scope, scope.dtype(ids), value as f64);
    match strategy {
        PartitionStrategy::Mod => {
            (scope.floor_mod(ids, n(parts.len())), scope.floor_div(ids, n(parts.len())))
        }
        PartitionStrategy::Div => {
            let rows: usize = parts.iter().map(|p| p.shape.dims().first().copied().unwrap_or(0)).sum();
            // The first `longer` parts have one row more than the parts after them.
            let (each, longer) = (rows / parts.len(), rows % parts.len());
            let in_longer = scope.floor_div(ids, n(each + 1));
            let beyond = scope.sub(ids, n(longer));
            let part = scope.maximum(in_longer, scope.floor_div(beyond, n(each.max(1))));
            let is_longer = scope.op("Less").input(part).input(n(longer)).output();
            let row = scope.select(
                is_longer,
                scope.floor_mod(ids, n(each + 1)),
                scope.floor_mod(beyond, n(each.max(1))),
            );
            (part, row)
        }
    }
}
