//! Variables: tensors that steps share, read by snapshot and written in place.

use crate::error::Result;
use crate::resource::Resource;
use graph::{DType, PartialShape, Tensor};
use parking_lot::{Mutex, MutexGuard};

/// A mutable tensor, with no value until the first assignment.
///
/// A reader takes a snapshot that shares storage; a writer that finds storage shared copies it first, so that
/// what a reader holds never changes under it.
#[derive(Debug)]
pub struct Variable {
    dtype: DType,
    shape: PartialShape,
    value: Mutex<Option<Tensor>>,
}

impl Variable {
    pub fn new(dtype: DType, shape: PartialShape) -> Variable {
        Variable { dtype, shape, value: Mutex::new(None) }
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The declared shape; values may be narrower.
    pub fn shape(&self) -> &PartialShape {
        &self.shape
    }

    /// A snapshot of the value; `None` before the first assignment.
    pub fn read(&self) -> Option<Tensor> {
        self.value.lock().clone()
    }

    /// The value for writing, exclusively: keep it short, readers wait.
    pub fn lock(&self) -> MutexGuard<'_, Option<Tensor>> {
        self.value.lock()
    }

    pub fn is_initialized(&self) -> bool {
        self.value.lock().is_some()
    }
}

/// The variable behind a resource handle (`VarHandleOp`).
impl Resource for Variable {
    const KIND: &'static str = "Var";
}

/// The variable behind a reference (`VariableV2`): another kind, so that the two never share a name.
#[derive(Debug)]
pub struct RefVariable(pub std::sync::Arc<Variable>);

impl Resource for RefVariable {
    const KIND: &'static str = "LegacyVar";
}

/// Locks several variables in one global order, so that two kernels that need the same ones cannot wait for
/// each other. Each variable may appear once.
pub fn lock_all<'a, const N: usize>(
    variables: [&'a Variable; N],
) -> Result<[MutexGuard<'a, Option<Tensor>>; N]> {
    let mut order: [usize; N] = std::array::from_fn(|i| i);
    order.sort_by_key(|&i| std::ptr::from_ref(variables[i]) as usize);
    for pair in order.windows(2) {
        if std::ptr::eq(variables[pair[0]], variables[pair[1]]) {
            crate::invalid!("one variable is passed for two different arguments");
        }
    }
    let mut guards: [Option<MutexGuard<'a, Option<Tensor>>>; N] = std::array::from_fn(|_| None);
    for i in order {
        guards[i] = Some(variables[i].lock());
    }
    let mut taken = guards.into_iter().flatten();
    Ok(std::array::from_fn(|i| taken.next().unwrap_or_else(|| variables[i].lock())))
}
