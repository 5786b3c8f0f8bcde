//! Optimizer updates. Each optimizer has up to four ops: on variables by reference or by handle, and with a dense or
//! a sparse gradient.

use super::resource::value_shape;
use super::spec::ArgType;
use super::{Gradient, OpDef, Traits};
use crate::dtype::DType;
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

/// Builds the op table row of one op of an optimizer from its variant (such as `dense`), its name, its slots, its
/// inputs before the gradient, its gradient, its inputs after the gradient, and its attributes.
macro_rules! op {
    (dense $name:literal
     { ($($slot:literal)*) [$($before:literal)*] $grad:literal [$($after:literal)*] ($($attr:literal)*) }) => {
        OpDef {
            name: concat!("Apply", $name),
            inputs: &[
                "var: Ref(T)", $(concat!($slot, ": Ref(T)"),)* $($before,)* concat!($grad, ": T"), $($after),*
            ],
            outputs: &["out: Ref(T)"],
            attrs: &["T: numbertype", "use_locking: bool = false", $($attr),*],
            infer: apply,
            gradient: Gradient::Leaf,
            ..OpDef::NEW
        }
    };
    (sparse $name:literal
     { ($($slot:literal)*) [$($before:literal)*] $grad:literal [$($after:literal)*] ($($attr:literal)*) }) => {
        OpDef {
            name: concat!("SparseApply", $name),
            inputs: &[
                "var: Ref(T)", $(concat!($slot, ": Ref(T)"),)* $($before,)* "grad: T", "indices: Tindices",
                $($after),*
            ],
            outputs: &["out: Ref(T)"],
            attrs: &["T: numbertype", "Tindices: {int32, int64}", "use_locking: bool = false", $($attr),*],
            infer: apply,
            gradient: Gradient::Leaf,
            ..OpDef::NEW
        }
    };
    (resource_dense $name:literal
     { ($($slot:literal)*) [$($before:literal)*] $grad:literal [$($after:literal)*] ($($attr:literal)*) }) => {
        OpDef {
            name: concat!("ResourceApply", $name),
            inputs: &[
                "var: resource", $(concat!($slot, ": resource"),)* $($before,)* concat!($grad, ": T"),
                $($after),*
            ],
            attrs: &["T: numbertype", "use_locking: bool = false", $($attr),*],
            infer: apply,
            gradient: Gradient::Leaf,
            traits: Traits::STATEFUL,
            ..OpDef::NEW
        }
    };
    (resource_sparse $name:literal
     { ($($slot:literal)*) [$($before:literal)*] $grad:literal [$($after:literal)*] ($($attr:literal)*) }) => {
        OpDef {
            name: concat!("ResourceSparseApply", $name),
            inputs: &[
                "var: resource", $(concat!($slot, ": resource"),)* $($before,)* "grad: T",
                "indices: Tindices", $($after),*
            ],
            attrs: &["T: numbertype", "Tindices: {int32, int64}", "use_locking: bool = false", $($attr),*],
            infer: apply,
            gradient: Gradient::Leaf,
            traits: Traits::STATEFUL,
            ..OpDef::NEW
        }
    };
}

macro_rules! optimizers {
    ($($name:literal [$($form:ident)*] $signature:tt)*) => { &[$($(op!($form $name $signature)),*),*] };
}

pub(super) const OPS: &[OpDef] = optimizers! {
    "GradientDescent" [dense resource_dense] { () ["alpha: T"] "delta" [] () }
    "Momentum" [dense sparse resource_dense resource_sparse]
        { ("accum") ["lr: T"] "grad" ["momentum: T"] ("use_nesterov: bool = false") }
    "KerasMomentum" [resource_dense resource_sparse]
        { ("accum") ["lr: T"] "grad" ["momentum: T"] ("use_nesterov: bool = false") }
    "Adam" [dense resource_dense]
        { ("m" "v")
          ["beta1_power: T" "beta2_power: T" "lr: T" "beta1: T" "beta2: T" "epsilon: T"] "grad" []
          ("use_nesterov: bool = false") }
    "AdamWithAmsgrad" [resource_dense]
        { ("m" "v" "vhat")
          ["beta1_power: T" "beta2_power: T" "lr: T" "beta1: T" "beta2: T" "epsilon: T"] "grad" [] () }
    "AdaMax" [dense resource_dense]
        { ("m" "v") ["beta1_power: T" "lr: T" "beta1: T" "beta2: T" "epsilon: T"] "grad" [] () }
    "Adagrad" [dense sparse resource_dense resource_sparse]
        { ("accum") ["lr: T"] "grad" [] ("update_slots: bool = true") }
    "AdagradV2" [dense sparse resource_dense resource_sparse]
        { ("accum") ["lr: T" "epsilon: T"] "grad" [] ("update_slots: bool = true") }
    "AdagradDA" [dense sparse resource_dense resource_sparse]
        { ("gradient_accumulator" "gradient_squared_accumulator")
          [] "grad" ["lr: T" "l1: T" "l2: T" "global_step: int64"] () }
    "RMSProp" [dense sparse resource_dense resource_sparse]
        { ("ms" "mom") ["lr: T" "rho: T" "momentum: T" "epsilon: T"] "grad" [] () }
    "CenteredRMSProp" [dense sparse resource_dense resource_sparse]
        { ("mg" "ms" "mom") ["lr: T" "rho: T" "momentum: T" "epsilon: T"] "grad" [] () }
    "Ftrl" [dense sparse resource_dense resource_sparse]
        { ("accum" "linear") [] "grad" ["lr: T" "l1: T" "l2: T" "lr_power: T"]
          ("multiply_linear_by_lr: bool = false") }
    "FtrlV2" [dense sparse resource_dense resource_sparse]
        { ("accum" "linear") [] "grad" ["lr: T" "l1: T" "l2: T" "l2_shrinkage: T" "lr_power: T"]
          ("multiply_linear_by_lr: bool = false") }
    "Adadelta" [dense sparse resource_dense resource_sparse]
        { ("accum" "accum_update") ["lr: T" "rho: T" "epsilon: T"] "grad" [] () }
    "ProximalGradientDescent" [dense sparse resource_dense resource_sparse]
        { () ["alpha: T" "l1: T" "l2: T"] "delta" [] () }
    "ProximalAdagrad" [dense sparse resource_dense resource_sparse]
        { ("accum") ["lr: T" "l1: T" "l2: T"] "grad" [] () }
    "AddSign" [dense resource_dense]
        { ("m") ["lr: T" "alpha: T" "sign_decay: T" "beta: T"] "grad" [] () }
    "PowerSign" [dense resource_dense]
        { ("m") ["lr: T" "logbase: T" "sign_decay: T" "beta: T"] "grad" [] () }
};

/// Checks that the variable and its slots have the same shape, that the gradient has this shape or (if sparse) some of
/// its rows, and that all other inputs are scalars.
fn apply(infer: &mut Infer<'_>) -> Result<()> {
    let args = &infer.op().inputs;
    let sparse = args.iter().position(|a| a.name == "indices");
    let mut shape = PartialShape::unknown();
    for (i, arg) in args.iter().enumerate() {
        match arg.name {
            _ if arg.is_ref => shape = shape.merge(&infer.input(i))?,
            _ if arg.ty == ArgType::Fixed(DType::Resource) => {
                shape = shape.merge(&value_shape(infer, i, "T")?)?;
            }
            "grad" | "delta" => match sparse {
                None => shape = shape.merge(&infer.input(i))?,
                Some(indices) => check_rows(&shape, &infer.input(i), &infer.input(indices))?,
            },
            "indices" => {
                infer.input_of_rank(i, 1)?;
            }
            _ => {
                infer.input_of_rank(i, 0)?;
            }
        }
    }
    if infer.num_outputs() > 0 {
        infer.set(0, shape);
    }
    Ok(())
}

/// Checks that a sparse gradient has one row of the variable per index.
fn check_rows(variable: &PartialShape, grad: &PartialShape, indices: &PartialShape) -> Result<()> {
    let Some(dims) = variable.dims() else { return Ok(()) };
    if dims.is_empty() {
        crate::invalid!("Shape must be at least rank 1 but is rank 0");
    }
    let count: Dim = indices.dim(0);
    PartialShape::of_dims(std::iter::once(count).chain(dims[1..].iter().copied())).merge(grad)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::Scope;
    use crate::builder::training::{Adagrad, Momentum};
    use crate::graph::Output;

    fn value(s: &Scope, shape: &[usize]) -> Output {
        let shape = PartialShape::of_dims(shape.iter().map(|&d| Some(d)));
        s.identity(s.variable("value", DType::Float, shape))
    }

    #[test]
    fn slots_gradients_and_scalars_must_fit_the_variable() -> Result<()> {
        let step = |grad: &[usize], accum: &[usize], lr: &[usize]| {
            let s = Scope::new();
            let v = s.variable("v", DType::Float, [3, 2]);
            let accum = s.variable("a", DType::Float, PartialShape::of_dims(accum.iter().map(|&d| Some(d))));
            let config = Momentum { accum, lr: value(&s, lr), momentum: value(&s, &[]), use_nesterov: false };
            let out = s.apply_momentum(v, &config, value(&s, grad));
            s.finish().map(|_| s.shape(out))
        };
        assert_eq!(step(&[3, 2], &[3, 2], &[])?, [3, 2].into());
        assert!(step(&[2, 3], &[3, 2], &[]).is_err());
        assert!(step(&[3, 2], &[3], &[]).is_err());
        assert!(step(&[3, 2], &[3, 2], &[1]).is_err());
        Ok(())
    }

    #[test]
    fn sparse_gradients_have_one_row_per_index() -> Result<()> {
        let step = |grad: &[usize], indices: &[usize]| {
            let s = Scope::new();
            let v = s.var_handle("v", DType::Float, [3, 2]);
            let config = Adagrad {
                accum: s.var_handle("a", DType::Float, [3, 2]),
                lr: value(&s, &[]),
                update_slots: true,
            };
            let shape = PartialShape::of_dims(indices.iter().map(|&d| Some(d)));
            let indices = s.identity(s.variable("i", DType::Int32, shape));
            s.resource_sparse_apply_adagrad(v, &config, value(&s, grad), indices);
            s.finish()
        };
        step(&[5, 2], &[5])?;
        assert!(step(&[5, 3], &[5]).is_err());
        assert!(step(&[4, 2], &[5]).is_err());
        assert!(step(&[5, 2], &[5, 1]).is_err());
        Ok(())
    }
}
