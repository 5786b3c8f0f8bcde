//! The terms of a member's request, which must be equal on all members.

use crate::collective::register::{BROADCAST, Terms};
use device::collective::{Operation, Placed, Request};

impl Terms {
    /// Returns the terms of a member's request.
    pub(super) fn of(request: &Request) -> Terms {
        let shape = match (request.operation, &request.input) {
            (Operation::Gather | Operation::Broadcast { .. }, _) | (_, None) => &request.shape,
            (_, Some(input)) => input.shape(),
        };
        Terms {
            kind: kind(request.operation),
            dtype: request.dtype.number(),
            shape: Some(shape.clone()),
            functions: match &request.placed {
                Some(placed) => format!("{}, {}", functions(request.operation), subgroups(placed)),
                None => functions(request.operation),
            },
        }
    }
}

/// Returns the number by which TensorFlow's protocol denotes an operation.
pub(super) fn kind(operation: Operation) -> i32 {
    match operation {
        Operation::Reduce(_) | Operation::Join => 0,
        Operation::Broadcast { .. } => BROADCAST,
        Operation::Gather => 2,
        Operation::AllToAll => 4,
        Operation::ReduceScatter(_) => 5,
        // Operations of process groups; TensorFlow's protocol has no numbers for them.
        Operation::ReduceToRoot { .. } | Operation::GatherToRoot { .. } | Operation::Scatter { .. } => 6,
    }
}

/// Returns the names of a reduction's functions, such as `Add,Div`; empty for other operations.
fn functions(operation: Operation) -> String {
    let (Operation::Reduce(reduction) | Operation::ReduceScatter(reduction)) = operation else {
        return String::new();
    };
    format!("{},{}", reduction.merge.name(), if reduction.is_mean { "Div" } else { "Id" })
}

/// Returns the text for the subgroups in which the members of a communicator carry out an operation.
fn subgroups(placed: &Placed) -> String {
    match &*placed.assignment {
        [] => "all members together".into(),
        rows => format!("subgroups {rows:?}"),
    }
}
