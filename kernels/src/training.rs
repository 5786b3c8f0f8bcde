//! Kernels of optimizer steps: they lock the variable and its slots, check shapes, and apply the optimizer's rule to
//! the elements.

mod rules;

use crate::numeric::dispatch::{FLOATS, FRACTIONS, dispatch};
use crate::numeric::scalar::{Analytic, Semiring as _};
use crate::numeric::threads::{PARALLEL, is_parallel_under_lock, join};
use crate::numeric::widen::Lane;
use crate::plan::scatter::pass_reference;
use crate::plan::training::{Arguments, check_rows, check_scalar, same_shape};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::variable::{Variable, VariableInput, lock_all};
use device::{Error, Result};
use graph::{DType, Shape, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

/// Kernel table entries for the ops of each optimizer: the group of dtypes, the rule, the number of variables
/// (including slots), and the flag attribute.
macro_rules! kernels {
    ($($group:ident $rule:ident $count:literal $flag:literal: $($op:literal)*;)*) => {
        &[$($(
            KernelDef::of($op, kernels!(@types $group), |init| dispatch!($group, init.attr::<DType>("T")?, T => {
                step::<T, $count>(init, $flag, |scalars, flag| {
                    let rule = rules::$rule::<<T as Lane>::Wide>(scalars, flag)?;
                    Ok(Box::new(move |slices, grad| walk(slices, grad, &rule)))
                })
            }))
        ),*),*]
    };
    (@types float) => { &[("T", FLOATS)] };
    (@types fraction) => { &[("T", FRACTIONS)] };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    fraction gradient_descent 1 "": "ApplyGradientDescent" "ResourceApplyGradientDescent";
    fraction momentum 2 "use_nesterov":
        "ApplyMomentum" "SparseApplyMomentum" "ResourceApplyMomentum" "ResourceSparseApplyMomentum";
    fraction keras_momentum 2 "use_nesterov": "ResourceApplyKerasMomentum" "ResourceSparseApplyKerasMomentum";
    fraction adam 3 "use_nesterov": "ApplyAdam" "ResourceApplyAdam";
    float adam_with_amsgrad 4 "": "ResourceApplyAdamWithAmsgrad";
    float ada_max 3 "": "ApplyAdaMax" "ResourceApplyAdaMax";
    fraction adagrad 2 "update_slots":
        "ApplyAdagrad" "SparseApplyAdagrad" "ResourceApplyAdagrad" "ResourceSparseApplyAdagrad";
    fraction adagrad_v2 2 "update_slots":
        "ApplyAdagradV2" "SparseApplyAdagradV2" "ResourceApplyAdagradV2" "ResourceSparseApplyAdagradV2";
    float adagrad_da 3 "":
        "ApplyAdagradDA" "SparseApplyAdagradDA" "ResourceApplyAdagradDA" "ResourceSparseApplyAdagradDA";
    fraction rms_prop 3 "": "ApplyRMSProp" "SparseApplyRMSProp" "ResourceApplyRMSProp" "ResourceSparseApplyRMSProp";
    fraction centered_rms_prop 4 "":
        "ApplyCenteredRMSProp" "SparseApplyCenteredRMSProp" "ResourceApplyCenteredRMSProp"
        "ResourceSparseApplyCenteredRMSProp";
    float ftrl 3 "multiply_linear_by_lr": "ApplyFtrl" "ResourceApplyFtrl";
    float ftrl_v2 3 "multiply_linear_by_lr": "ApplyFtrlV2" "ResourceApplyFtrlV2";
    float sparse_ftrl 3 "multiply_linear_by_lr": "SparseApplyFtrl" "ResourceSparseApplyFtrl";
    float sparse_ftrl_v2 3 "multiply_linear_by_lr": "SparseApplyFtrlV2" "ResourceSparseApplyFtrlV2";
    fraction adadelta 3 "": "ApplyAdadelta" "SparseApplyAdadelta" "ResourceApplyAdadelta" "ResourceSparseApplyAdadelta";
    float proximal_gradient_descent 1 "":
        "ApplyProximalGradientDescent" "SparseApplyProximalGradientDescent"
        "ResourceApplyProximalGradientDescent" "ResourceSparseApplyProximalGradientDescent";
    float proximal_adagrad 2 "":
        "ApplyProximalAdagrad" "SparseApplyProximalAdagrad" "ResourceApplyProximalAdagrad"
        "ResourceSparseApplyProximalAdagrad";
    float add_sign 2 "": "ApplyAddSign" "ResourceApplyAddSign";
    float power_sign 2 "": "ApplyPowerSign" "ResourceApplyPowerSign";
};

impl Arguments {
    fn scalars<T: Lane<Wide: Analytic>>(&self, ctx: &KernelContext<'_>) -> Result<SmallVec<[T::Wide; 8]>> {
        let read = |&(i, name): &(usize, &str)| {
            let value = ctx.input(i)?;
            check_scalar(name, value.shape())?;
            match value.dtype() {
                DType::Int64 => Ok(T::Wide::of_real(value.item::<i64>()? as f64)),
                _ => Ok(value.item::<T>()?.to_wide()),
            }
        };
        self.scalars.iter().map(read).collect()
    }
}

/// A rule's loop: updates slices of the variable and its slots by a gradient of equally many elements. It is a trait
/// object so that locking, checks and distribution over threads are compiled once per element type, not once per rule.
type Update<T, const V: usize> = dyn Fn(&mut [&mut [T]; V], &[T]) + Sync;

/// Makes the kernel of an op with `V` variables; `make` creates the rule's loop from the op's scalars and flag.
fn step<T: Lane<Wide: Analytic>, const V: usize>(
    init: &KernelInit<'_>,
    flag: &str,
    make: fn(&[T::Wide], bool) -> Result<Box<Update<T, V>>>,
) -> Result<Kernel> {
    let arguments = Arguments::new(init)?;
    if arguments.variables.len() != V {
        return Err(Error::internal(format!("{} has {} variables", init.node.op.name(), V)));
    }
    let flag = !flag.is_empty() && init.attr::<bool>(flag)?;
    let variables: [VariableInput; V] = std::array::from_fn(|i| VariableInput::new(init, i));
    Kernel::sync(move |ctx| {
        let update = make(&arguments.scalars::<T>(ctx)?, flag)?;
        let mut found = SmallVec::<[Arc<Variable>; 4]>::new();
        for variable in &variables {
            found.push(variable.get(ctx)?);
        }
        let mut guards = lock_all::<V>(std::array::from_fn(|i| &*found[i]))?;
        let mut values = SmallVec::<[&Tensor; 4]>::new();
        for (guard, variable) in guards.iter().zip(&found) {
            values.push(guard.as_ref().ok_or_else(|| variable.uninitialized())?);
        }
        let shape = values[0].shape().clone();
        for (value, name) in values.iter().zip(&arguments.variables) {
            same_shape(&shape, name, value.shape())?;
        }
        let (grad, name) = (ctx.input(arguments.grad.0)?, arguments.grad.1);
        let rows = match arguments.indices {
            None => {
                same_shape(&shape, name, grad.shape())?;
                None
            }
            Some(i) => Some(rows(&shape, grad.shape(), ctx.input(i)?)?),
        };
        let grad = grad.values::<T>()?;
        // The dtypes are checked before the variables are modified, so that an error changes nothing.
        values.into_iter().try_for_each(|value| value.values::<T>().map(|_| ()))?;
        let rows = rows.map(|numbers| {
            let len = grad.len().checked_div(numbers.len()).unwrap_or(0);
            GradientRows { numbers, len }
        });
        let mut slices: [&mut [T]; V] = std::array::from_fn(|_| Default::default());
        for (slice, guard) in slices.iter_mut().zip(&mut guards) {
            let value = match &rows {
                None => &mut **guard,
                Some(rows) => guard.slices_mut(rows.numbers.iter().copied(), rows.len)?,
            };
            if let Some(value) = value {
                *slice = value.values_mut::<T>()?;
            }
        }
        match rows {
            None => dense(slices, grad, &*update, is_parallel_under_lock(grad.len())),
            Some(rows) => {
                let is_parallel = is_parallel_under_lock(grad.len()) && rows.len >= 16;
                let bands = if is_parallel { rayon::current_num_threads() } else { 1 };
                sparse(slices, 0, &rows, grad, &*update, bands);
            }
        }
        drop(guards);
        pass_reference(ctx, &variables[0], found.swap_remove(0));
        Ok(())
    })
}

/// Returns the variable's rows to which the rows of a sparse gradient belong.
fn rows(var: &Shape, grad: &Shape, indices: &Tensor) -> Result<Vec<usize>> {
    let count = check_rows(var, grad, indices.shape())?;
    let check = |(i, index): (usize, i64)| match usize::try_from(index) {
        Ok(row) if row < count => Ok(row),
        _ => device::invalid!("Index {index} at offset {i} in indices is out of range"),
    };
    match indices.dtype() {
        DType::Int32 => indices.values::<i32>()?.iter().map(|&v| v.into()).enumerate().map(check).collect(),
        _ => indices.values::<i64>()?.iter().copied().enumerate().map(check).collect(),
    }
}

/// Updates every element, in two halves in parallel where that pays.
fn dense<T: Send + Sync, const V: usize>(
    mut vars: [&mut [T]; V],
    grad: &[T],
    update: &Update<T, V>,
    parallel: bool,
) {
    if !parallel || grad.len() <= PARALLEL / 4 {
        return update(&mut vars, grad);
    }
    // A multiple of every block's length.
    let middle = (grad.len() / 2).next_multiple_of(64).min(grad.len());
    let (left, right) = split(vars, middle);
    let (left_grad, right_grad) = grad.split_at(middle);
    join(|| dense(left, left_grad, update, true), || dense(right, right_grad, update, true));
}

/// The rows of a sparse gradient.
struct GradientRows {
    numbers: Vec<usize>,
    /// Elements per row.
    len: usize,
}

/// Updates the rows from number `first` on that `vars` contain, in two halves in parallel while `bands`
/// allows it. A row that occurs twice is updated twice, in order.
fn sparse<T: Send + Sync, const V: usize>(
    mut vars: [&mut [T]; V],
    first: usize,
    rows: &GradientRows,
    grad: &[T],
    update: &Update<T, V>,
    bands: usize,
) {
    let len = rows.len;
    let count = vars[0].len().checked_div(len).unwrap_or(0);
    if bands > 1 && count > 1 {
        let middle = count / 2;
        let (left, right) = split(vars, middle * len);
        join(
            || sparse(left, first, rows, grad, update, bands / 2),
            || sparse(right, first + middle, rows, grad, update, bands - bands / 2),
        );
        return;
    }
    for (i, &number) in rows.numbers.iter().enumerate() {
        if number >= first && number < first + count {
            let at = (number - first) * len;
            let mut row = vars.each_mut().map(|v| &mut v[at..at + len]);
            update(&mut row, &grad[i * len..][..len]);
        }
    }
}

fn split<T, const V: usize>(vars: [&mut [T]; V], middle: usize) -> ([&mut [T]; V], [&mut [T]; V]) {
    let mut rights = [const { None }; V];
    let mut i = 0;
    let left = vars.map(|v| {
        let (left, right) = v.split_at_mut(middle);
        rights[i] = Some(right);
        i += 1;
        left
    });
    (left, rights.map(Option::unwrap_or_default))
}

/// Elements processed together: their values are in local arrays, which the compiler knows not to overlap, so that it
/// can use vector registers.
const BLOCK: usize = 16;

/// Applies the rule to every element of `vars`, on this thread.
fn walk<T: Lane<Wide: Analytic>, const V: usize>(
    vars: &mut [&mut [T]; V],
    grad: &[T],
    rule: &impl Fn([T::Wide; V], T::Wide) -> [T::Wide; V],
) {
    let (blocks, rest) = grad.as_chunks::<BLOCK>();
    for (b, grad) in blocks.iter().enumerate() {
        let at = b * BLOCK;
        let g = grad.map(T::to_wide);
        let mut states = [[T::Wide::ZERO; BLOCK]; V];
        for (state, var) in states.iter_mut().zip(vars.iter()) {
            for (s, v) in state.iter_mut().zip(&var[at..at + BLOCK]) {
                *s = v.to_wide();
            }
        }
        for i in 0..BLOCK {
            let new = rule(std::array::from_fn(|k| states[k][i]), g[i]);
            for k in 0..V {
                states[k][i] = new[k];
            }
        }
        for (state, var) in states.iter().zip(vars.iter_mut()) {
            for (s, v) in state.iter().zip(&mut var[at..at + BLOCK]) {
                *v = T::of_wide(*s);
            }
        }
    }
    let done = blocks.len() * BLOCK;
    for (i, g) in rest.iter().enumerate() {
        let new = rule(std::array::from_fn(|k| vars[k][done + i].to_wide()), g.to_wide());
        for (var, new) in vars.iter_mut().zip(new) {
            var[done + i] = T::of_wide(new);
        }
    }
}

#[cfg(test)]
mod tests;
