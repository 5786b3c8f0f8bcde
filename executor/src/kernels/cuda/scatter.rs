//! Kernels that update some rows of a variable. Rows that come twice are updated in no order; an index that is out of
//! range is passed over, for a kernel has nobody to tell.

use super::gather::ADDED;
use super::support::{function, launch, read, type_name, write};
use super::variable::changed;
use crate::cuda::{Arguments, Function, Source};
use crate::device::DeviceTensor;
use crate::error::Result;
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use crate::kernels::cpu::dispatch::INDEX;
use crate::kernels::cpu::scatter::give_reference;
use crate::variable::VariableInput;
use graph::DType;
use std::sync::Arc;

static SOURCE: Source = Source { file: "scatter.cu", text: include_str!("scatter.cu") };

macro_rules! kernels {
    ($($op:literal $type_attr:literal $function:literal;)*) => {
        &[$(KernelDef::updating($op, &[($type_attr, ADDED), ("Tindices", INDEX)], |init| rows(init, $function))),*]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    "ScatterAdd" "T" "Add";
    "ScatterSub" "T" "Sub";
    "ScatterUpdate" "T" "Update";
    "ResourceScatterAdd" "dtype" "Add";
    "ResourceScatterSub" "dtype" "Sub";
    "ResourceScatterUpdate" "dtype" "Update";
};

/// Rows of a tensor changed by rows of another.
pub(super) struct Scatter(Arc<Function>);

impl Scatter {
    pub(super) fn new(init: &KernelInit<'_>, named: &str, dtype: DType, index: DType) -> Result<Scatter> {
        let name = format!("scatter<{named}, {}, {}>", type_name(dtype)?, type_name(index)?);
        Ok(Scatter(function(init, &SOURCE, name)?))
    }

    /// `updates` are a row for each index, or one element for all.
    pub(super) fn run(
        &self,
        ctx: &KernelContext<'_>,
        to: &DeviceTensor,
        indices: &DeviceTensor,
        updates: &DeviceTensor,
    ) -> Result<()> {
        let Some((&rows, row)) = to.shape.split_first() else {
            crate::invalid!("var must be at least 1 dimensional");
        };
        let inner: usize = row.iter().product();
        let n = indices.shape.num_elements() * inner;
        let arguments = Arguments::new()
            .address(write(to)?)
            .address(read(indices)?)
            .address(read(updates)?)
            .count(n)
            .count(rows)
            .count(inner)
            .count(usize::from(updates.shape.rank() > 0));
        launch(ctx, &self.0, n, arguments)
    }
}

fn rows(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let variable = VariableInput::new(init, 0);
    let dtype = init.input_type(2);
    let scatter = Scatter::new(init, named, dtype, init.input_type(1))?;
    Kernel::sync(move |ctx| {
        let target = variable.get(ctx)?;
        let (indices, updates) = (ctx.device_input(1)?, ctx.device_input(2)?);
        changed(ctx, &target, |params| {
            if params.dtype != dtype {
                crate::invalid!("Trying to scatter {dtype} into a variable of {}", params.dtype);
            }
            let row = params.shape.get(1..).unwrap_or_default();
            let expected = [&indices.shape[..], row].concat();
            if updates.shape.rank() > 0 && updates.shape.dims() != expected {
                crate::invalid!(
                    "Must have updates.shape = indices.shape + params.shape[1:] or updates.shape = [], got \
                     updates.shape {}, indices.shape {}, params.shape {}",
                    updates.shape,
                    indices.shape,
                    params.shape
                );
            }
            scatter.run(ctx, params, indices, updates)
        })?;
        give_reference(ctx, &variable, target);
        Ok(())
    })
}
