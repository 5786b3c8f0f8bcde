//! Kernels of optimizer steps: they lock the variable and its slots, check shapes, and enqueue the optimizer's
//! rule. Learning rates and other scalars are in the GPU's memory, because GPU kernels may compute them.

use super::copy::zeros;
use super::support::{function, kernel_stream, read, type_name, write};
use super::variable::make_variable_unique;
use crate::engine::driver::Address;
use crate::engine::{Arguments, Piece, Source};
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::variable::{Variable, VariableInput, lock_all_on_device};
use device::{Error, Result};
use graph::{DType, Shape};
use kernels::numeric::dispatch::{FLOATS, INDEX};
use kernels::plan::scatter::pass_reference;
use kernels::plan::training::{Arguments as Places, check_rows, check_scalar, same_shape};
use smallvec::SmallVec;
use std::sync::Arc;

static SOURCE: Source = Source { file: "training.cu", text: include_str!("training.cu") };

/// Defines the kernels of optimizers. A line has the rule in the `.cu` file, the number of variables (slots
/// included), the attribute that is passed to the rule as `flag`, the ops with dense gradients, and the ops
/// with gradients of some rows.
macro_rules! kernels {
    ($($rule:ident $count:literal $flag:literal: $($op:literal)* $(, of rows: $($sparse:literal)*)?;)*) => {
        &[$(
            $(KernelDef::updating($op, &[("T", FLOATS)], |init| step::<$count>(init, $flag, stringify!($rule))),)*
            $($(KernelDef::updating($sparse, &[("T", FLOATS), ("Tindices", INDEX)], |init| {
                step::<$count>(init, $flag, stringify!($rule))
            }),)*)?
        )*]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    GradientDescent 1 "": "ApplyGradientDescent" "ResourceApplyGradientDescent";
    Momentum 2 "use_nesterov": "ApplyMomentum" "ResourceApplyMomentum",
        of rows: "SparseApplyMomentum" "ResourceSparseApplyMomentum";
    KerasMomentum 2 "use_nesterov": "ResourceApplyKerasMomentum", of rows: "ResourceSparseApplyKerasMomentum";
    Adam 3 "use_nesterov": "ApplyAdam" "ResourceApplyAdam";
    AdamWithAmsgrad 4 "": "ResourceApplyAdamWithAmsgrad";
    AdaMax 3 "": "ApplyAdaMax" "ResourceApplyAdaMax";
    Adagrad 2 "update_slots": "ApplyAdagrad" "ResourceApplyAdagrad",
        of rows: "SparseApplyAdagrad" "ResourceSparseApplyAdagrad";
    AdagradV2 2 "update_slots": "ApplyAdagradV2" "ResourceApplyAdagradV2",
        of rows: "SparseApplyAdagradV2" "ResourceSparseApplyAdagradV2";
    AdagradDA 3 "": "ApplyAdagradDA" "ResourceApplyAdagradDA",
        of rows: "SparseApplyAdagradDA" "ResourceSparseApplyAdagradDA";
    RmsProp 3 "": "ApplyRMSProp" "ResourceApplyRMSProp",
        of rows: "SparseApplyRMSProp" "ResourceSparseApplyRMSProp";
    CenteredRmsProp 4 "": "ApplyCenteredRMSProp" "ResourceApplyCenteredRMSProp",
        of rows: "SparseApplyCenteredRMSProp" "ResourceSparseApplyCenteredRMSProp";
    Adadelta 3 "": "ApplyAdadelta" "ResourceApplyAdadelta",
        of rows: "SparseApplyAdadelta" "ResourceSparseApplyAdadelta";
    Ftrl 3 "multiply_linear_by_lr": "ApplyFtrl" "ResourceApplyFtrl";
    FtrlV2 3 "multiply_linear_by_lr": "ApplyFtrlV2" "ResourceApplyFtrlV2";
    SparseFtrl 3 "multiply_linear_by_lr":, of rows: "SparseApplyFtrl" "ResourceSparseApplyFtrl";
    SparseFtrlV2 3 "multiply_linear_by_lr":, of rows: "SparseApplyFtrlV2" "ResourceSparseApplyFtrlV2";
    ProximalGradientDescent 1 "": "ApplyProximalGradientDescent" "ResourceApplyProximalGradientDescent",
        of rows: "SparseApplyProximalGradientDescent" "ResourceSparseApplyProximalGradientDescent";
    ProximalAdagrad 2 "": "ApplyProximalAdagrad" "ResourceApplyProximalAdagrad",
        of rows: "SparseApplyProximalAdagrad" "ResourceSparseApplyProximalAdagrad";
    AddSign 2 "": "ApplyAddSign" "ResourceApplyAddSign";
    PowerSign 2 "": "ApplyPowerSign" "ResourceApplyPowerSign";
};

/// Largest number of variables of an op, slots included: the length of `State` in the `.cu` file.
const MOST_VARIABLES: usize = 4;
/// Largest number of scalar inputs of an op: the length of `Scalars` in the `.cu` file.
const MOST_SCALARS: usize = 8;

/// Number of row locks: `LOCKS` of the `.cu` file.
const LOCKS: usize = 4096;

/// Makes the kernel of an optimizer step on `V` variables, slots included.
fn step<const V: usize>(init: &KernelInit<'_>, flag: &str, rule: &str) -> Result<Kernel> {
    let places = Places::new(init)?;
    if places.variables.len() != V || places.scalars.len() > MOST_SCALARS {
        return Err(Error::internal(format!("{} has {V} variables", init.node.op.name())));
    }
    let dtype = init.attr::<DType>("T")?;
    let flag = !flag.is_empty() && init.attr::<bool>(flag)?;
    let element = type_name(dtype)?;
    let step = match places.indices {
        None => format!("step<{rule}, {element}>"),
        Some(i) => format!("sparse_step<{rule}, {element}, {}>", type_name(init.input_type(i))?),
    };
    let step = function(init, &SOURCE, step)?;
    let variables: [VariableInput; V] = std::array::from_fn(|i| VariableInput::new(init, i));
    Kernel::sync(move |ctx| {
        let mut scalars = [Address(0); MOST_SCALARS];
        for (to, &(i, name)) in scalars.iter_mut().zip(&places.scalars) {
            let scalar = ctx.device_input(i)?;
            check_scalar(name, &scalar.shape)?;
            *to = read(scalar)?;
        }
        let (grad, name) = (ctx.device_input(places.grad.0)?, places.grad.1);
        let mut found = SmallVec::<[Arc<Variable>; 4]>::new();
        for variable in &variables {
            found.push(variable.get(ctx)?);
        }
        let mut guards = lock_all_on_device::<V>(std::array::from_fn(|i| &*found[i]))?;
        let mut states = [Address(0); MOST_VARIABLES];
        let mut shape: Option<Shape> = None;
        for (i, (guard, variable)) in guards.iter_mut().zip(&found).enumerate() {
            let value = guard.as_mut().ok_or_else(|| variable.uninitialized())?;
            let first = shape.get_or_insert_with(|| value.shape.clone());
            same_shape(first, places.variables[i], &value.shape)?;
            if places.indices.is_none() {
                same_shape(first, name, &grad.shape)?;
            }
            if value.dtype != dtype {
                device::invalid!("{} is of {}, not {dtype}", places.variables[i], value.dtype);
            }
            make_variable_unique(ctx, value)?;
            states[i] = write(value)?;
        }
        let scalars = scalars.map(|scalar| scalar.0 as i64);
        match places.indices {
            None => {
                let bytes = grad.memory.len();
                let of = |piece: Piece, (i, state): (usize, &Address)| match i < V {
                    true => piece.writes(*state, bytes),
                    false => piece.none(),
                };
                let piece = states.iter().enumerate().fold(Piece::new(grad.shape.num_elements()), of);
                let shared = Arguments::new().flag(flag).structure(scalars);
                kernel_stream(ctx)?.launch_piece(&step, piece.reads(read(grad)?, bytes), &shared)?;
            }
            Some(i) => {
                let (indices, shape) = (ctx.device_input(i)?, shape.unwrap_or_default());
                let rows = check_rows(&shape, &grad.shape, &indices.shape)?;
                let count = indices.shape.num_elements();
                let locks = zeros(ctx, DType::UInt32, Shape::new(&[LOCKS])?)?;
                let arguments = Arguments::new()
                    .structure(states.map(|state| state.0 as i64))
                    .address(read(grad)?)
                    .count(count)
                    .flag(flag)
                    .structure(scalars)
                    .address(read(indices)?)
                    .address(write(&locks)?)
                    .count(rows)
                    .count(shape[1..].iter().product());
                kernel_stream(ctx)?.launch_blocks(&step, count, &arguments)?;
            }
        }
        drop(guards);
        pass_reference(ctx, &variables[0], found.swap_remove(0));
        Ok(())
    })
}
