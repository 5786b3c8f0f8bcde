//! The variables that a segment works on.

use device::Result;
use device::handle::{HandleInput, one_handle};
use device::repeat::Access;
use device::value::Value;
use device::variable::Variable;
use device::{Device, DeviceTensor};
use graph::DType;
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Variables, each once, in the one order in which all are locked.
#[derive(Debug, Default)]
pub(super) struct Variables {
    found: Vec<(Arc<Variable>, Access)>,
    /// By input of the segment: its variable's place in `found`.
    places: Vec<Option<usize>>,
}

/// The values of locked variables, by their places.
pub(super) type Locked<'a> = Vec<MutexGuard<'a, Option<DeviceTensor>>>;

impl Variables {
    /// Those that the inputs lead to; `None` if one leads to none, or as a view.
    ///
    /// # Errors
    /// Those of a handle that makes no sense.
    pub(super) fn of(
        inputs: &[Value],
        accesses: &[Access],
        handles: &[HandleInput<Variable>],
        device: &Arc<Device>,
    ) -> Result<Option<Variables>> {
        let mut of_inputs = Vec::with_capacity(inputs.len());
        for (input, handle) in inputs.iter().zip(handles) {
            of_inputs.push(match input {
                Value::Ref(variable) => Some(variable.clone()),
                Value::Host(tensor) if tensor.dtype() == DType::Resource => {
                    let find = |store: &device::resource::ResourceStore, handle: &graph::ResourceHandle| {
                        store.lookup(&handle.container, &handle.name)
                    };
                    Some(handle.get_or(device, one_handle(tensor)?, find)?)
                }
                Value::View(_) => return Ok(None),
                _ => None,
            });
        }
        let mut found: Vec<(Arc<Variable>, Access)> =
            of_inputs.iter().zip(accesses).filter_map(|(v, access)| Some((v.clone()?, *access))).collect();
        // Of several accesses the strongest stays.
        found.sort_by_key(|(variable, access)| (Arc::as_ptr(variable), std::cmp::Reverse(*access)));
        found.dedup_by(|(a, _), (b, _)| Arc::ptr_eq(a, b));
        let place =
            |variable: Arc<Variable>| found.iter().position(|(known, _)| Arc::ptr_eq(known, &variable));
        let places = of_inputs.into_iter().map(|variable| variable.and_then(place)).collect();
        Ok(Some(Variables { found, places }))
    }

    /// Their values, which nobody else reads or writes meanwhile.
    pub(super) fn lock(&self) -> Locked<'_> {
        self.found.iter().map(|(variable, _)| variable.lock_device()).collect()
    }

    /// The place of the variable that an input leads to.
    pub(super) fn place(&self, input: usize) -> Option<usize> {
        self.places.get(input).copied().flatten()
    }

    pub(super) fn access(&self, place: usize) -> Access {
        self.found[place].1
    }

    /// Whether all have values, and may change where they are to.
    pub(super) fn are_ready(&self, inputs: &[Value]) -> bool {
        let values = self.lock();
        values.iter().all(|value| value.is_some()) && self.may_change(&values, inputs)
    }

    /// Whether nobody but the segment's inputs holds a snapshot of a variable that is to be changed: one may not change
    /// under who reads it.
    pub(super) fn may_change(&self, values: &Locked<'_>, inputs: &[Value]) -> bool {
        self.changed(values).all(|value| {
            let holders = Arc::strong_count(&value.memory) - 1;
            let is_it = |input: &&Value| {
                matches!(input, Value::Device(input) if Arc::ptr_eq(&input.memory, &value.memory))
            };
            holders == 0 || holders == inputs.iter().filter(is_it).count()
        })
    }

    /// The values that are to be changed.
    pub(super) fn changed<'a>(&'a self, values: &'a Locked<'_>) -> impl Iterator<Item = &'a DeviceTensor> {
        let changes = values.iter().zip(&self.found).filter(|(_, (_, access))| *access == Access::Changes);
        changes.filter_map(|(value, _)| value.as_ref())
    }
}
