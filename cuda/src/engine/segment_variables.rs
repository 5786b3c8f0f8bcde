//! The variables that a segment reads and changes.

use device::Result;
use device::handle::{HandleInput, single_handle};
use device::segment_runner::Access;
use device::value::Value;
use device::variable::Variable;
use device::{Device, DeviceTensor};
use graph::DType;
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Distinct variables, sorted by address so that all segments lock them in the same order.
#[derive(Debug, Default)]
pub(super) struct SegmentVariables {
    found: Vec<(Arc<Variable>, Access)>,
    /// For each input of the segment, the index in `found` of the variable that the input refers to.
    indices: Vec<Option<usize>>,
}

/// The locked values of a segment's variables, in the order of [`SegmentVariables`].
pub(super) type LockedValues<'a> = Vec<MutexGuard<'a, Option<DeviceTensor>>>;

impl SegmentVariables {
    /// Finds the variables that the inputs refer to; returns `None` if an input is a view of a variable.
    ///
    /// # Errors
    /// The errors of an invalid or unknown handle.
    pub(super) fn of(
        inputs: &[Value],
        accesses: &[Access],
        handles: &[HandleInput<Variable>],
        device: &Arc<Device>,
    ) -> Result<Option<SegmentVariables>> {
        let mut of_inputs = Vec::with_capacity(inputs.len());
        for (input, handle) in inputs.iter().zip(handles) {
            of_inputs.push(match input {
                Value::Ref(variable) => Some(variable.clone()),
                Value::Host(tensor) if tensor.dtype() == DType::Resource => {
                    let find = |store: &device::resource::ResourceStore, handle: &graph::ResourceHandle| {
                        store.lookup(&handle.container, &handle.name)
                    };
                    Some(handle.get_or(device, single_handle(tensor)?, find)?)
                }
                Value::View(_) => return Ok(None),
                _ => None,
            });
        }
        let mut found: Vec<(Arc<Variable>, Access)> =
            of_inputs.iter().zip(accesses).filter_map(|(v, access)| Some((v.clone()?, *access))).collect();
        // If several inputs refer to a variable, only the entry with the strongest access is kept; it is sorted
        // first.
        found.sort_by_key(|(variable, access)| (Arc::as_ptr(variable), std::cmp::Reverse(*access)));
        found.dedup_by(|(a, _), (b, _)| Arc::ptr_eq(a, b));
        let index =
            |variable: Arc<Variable>| found.iter().position(|(known, _)| Arc::ptr_eq(known, &variable));
        let indices = of_inputs.into_iter().map(|variable| variable.and_then(index)).collect();
        Ok(Some(SegmentVariables { found, indices }))
    }

    /// Locks the values of all variables.
    pub(super) fn lock(&self) -> LockedValues<'_> {
        self.found.iter().map(|(variable, _)| variable.lock_device()).collect()
    }

    /// Returns the index of the variable that an input refers to.
    pub(super) fn index_of(&self, input: usize) -> Option<usize> {
        self.indices.get(input).copied().flatten()
    }

    /// Returns whether the segment reads or changes the variable of this index.
    pub(super) fn access(&self, index: usize) -> Access {
        self.found[index].1
    }

    /// Returns whether all variables have values, and no tensor outside the segment's inputs shares a value
    /// that the segment changes.
    pub(super) fn are_ready(&self, inputs: &[Value]) -> bool {
        let values = self.lock();
        values.iter().all(|value| value.is_some()) && self.may_change(&values, inputs)
    }

    /// Returns whether no tensor outside the segment's inputs shares a value that the segment changes; such a
    /// tensor is a snapshot of the variable and must keep its elements.
    pub(super) fn may_change(&self, values: &LockedValues<'_>, inputs: &[Value]) -> bool {
        self.changed_values(values).all(|value| {
            let holders = Arc::strong_count(&value.memory) - 1;
            let is_it = |input: &&Value| {
                matches!(input, Value::Device(input) if Arc::ptr_eq(&input.memory, &value.memory))
            };
            holders == 0 || holders == inputs.iter().filter(is_it).count()
        })
    }

    /// Iterates over the values that the segment changes.
    pub(super) fn changed_values<'a>(
        &'a self,
        values: &'a LockedValues<'_>,
    ) -> impl Iterator<Item = &'a DeviceTensor> {
        let changes = values.iter().zip(&self.found).filter(|(_, (_, access))| *access == Access::Changes);
        changes.filter_map(|(value, _)| value.as_ref())
    }
}
