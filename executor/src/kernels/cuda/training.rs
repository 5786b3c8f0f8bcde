//! Kernels of optimizer steps: they lock the variable and its slots, check shapes, and enqueue the optimizer's rule.
//! Rates and other scalars are in the GPU's memory, where what computes them is.

use super::support::{function, launch, read, type_name, write};
use super::variable::own;
use crate::cuda::driver::Address;
use crate::cuda::{Arguments, Source};
use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelDef, KernelInit};
use crate::kernels::cpu::dispatch::FLOATS;
use crate::kernels::cpu::scatter::give_reference;
use crate::kernels::cpu::training::{Arguments as Places, same_shape};
use crate::variable::{Variable, VariableInput, lock_all_on_device};
use graph::DType;
use smallvec::SmallVec;
use std::sync::Arc;

static SOURCE: Source = Source { file: "training.cu", text: include_str!("training.cu") };

/// Rows for forms of one optimizer: its rule, how many variables it has (slots included), and its flag.
macro_rules! kernels {
    ($($rule:ident $count:literal $flag:literal: $($op:literal)*;)*) => {
        &[$($(
            KernelDef::updating($op, &[("T", FLOATS)], |init| step::<$count>(init, $flag, stringify!($rule))),
        )*)*]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    GradientDescent 1 "": "ApplyGradientDescent" "ResourceApplyGradientDescent";
    Momentum 2 "use_nesterov": "ApplyMomentum" "ResourceApplyMomentum";
    KerasMomentum 2 "use_nesterov": "ResourceApplyKerasMomentum";
    Adam 3 "use_nesterov": "ApplyAdam" "ResourceApplyAdam";
    Adagrad 2 "update_slots": "ApplyAdagrad" "ResourceApplyAdagrad";
    AdagradV2 2 "update_slots": "ApplyAdagradV2" "ResourceApplyAdagradV2";
    RmsProp 3 "": "ApplyRMSProp" "ResourceApplyRMSProp";
    CenteredRmsProp 4 "": "ApplyCenteredRMSProp" "ResourceApplyCenteredRMSProp";
    Adadelta 3 "": "ApplyAdadelta" "ResourceApplyAdadelta";
    Ftrl 3 "multiply_linear_by_lr": "ApplyFtrl" "ResourceApplyFtrl";
    FtrlV2 3 "multiply_linear_by_lr": "ApplyFtrlV2" "ResourceApplyFtrlV2";
};

/// Variables and scalars that a kernel can take: `State` and `Scalars` of the `.cu` file.
const MOST_VARIABLES: usize = 4;
const MOST_SCALARS: usize = 8;

fn step<const V: usize>(init: &KernelInit<'_>, flag: &str, rule: &str) -> Result<Kernel> {
    let places = Places::new(init)?;
    if places.variables.len() != V || places.scalars.len() > MOST_SCALARS {
        return Err(Error::internal(format!("{} has {V} variables", init.node.op.name())));
    }
    let dtype = init.attr::<DType>("T")?;
    let flag = !flag.is_empty() && init.attr::<bool>(flag)?;
    let step = function(init, &SOURCE, format!("step<{rule}, {}>", type_name(dtype)?))?;
    let variables: [VariableInput; V] = std::array::from_fn(|i| VariableInput::new(init, i));
    Kernel::sync(move |ctx| {
        let mut scalars = [Address(0); MOST_SCALARS];
        for (to, &(i, name)) in scalars.iter_mut().zip(&places.scalars) {
            let scalar = ctx.device_input(i)?;
            if scalar.shape.rank() != 0 {
                crate::invalid!("{name} is not a scalar: {}", scalar.shape);
            }
            *to = read(scalar)?;
        }
        let (grad, name) = (ctx.device_input(places.grad.0)?, places.grad.1);
        let mut found = SmallVec::<[Arc<Variable>; 4]>::new();
        for variable in &variables {
            found.push(variable.get(ctx)?);
        }
        let mut guards = lock_all_on_device::<V>(std::array::from_fn(|i| &*found[i]))?;
        let mut states = [Address(0); MOST_VARIABLES];
        let mut shape = None;
        for (i, (guard, variable)) in guards.iter_mut().zip(&found).enumerate() {
            let value = guard.as_mut().ok_or_else(|| variable.uninitialized())?;
            let first = shape.get_or_insert_with(|| value.shape.clone());
            same_shape(first, places.variables[i], &value.shape)?;
            same_shape(first, name, &grad.shape)?;
            if value.dtype != dtype {
                crate::invalid!("{} is of {}, not {dtype}", places.variables[i], value.dtype);
            }
            own(ctx, value)?;
            states[i] = write(value)?;
        }
        let n = grad.shape.num_elements();
        let arguments = Arguments::new()
            .structure(states.map(|state| state.0 as i64))
            .address(read(grad)?)
            .count(n)
            .flag(flag)
            .structure(scalars.map(|scalar| scalar.0 as i64));
        launch(ctx, &step, n, arguments)?;
        drop(guards);
        give_reference(ctx, &variables[0], found.swap_remove(0));
        Ok(())
    })
}
