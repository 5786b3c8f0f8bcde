//! Builders of optimizer updates. The slots and hyperparameters of an optimizer are a struct, which all variants of its
//! op share: for reference or resource variables, with a dense or a sparse gradient.

use super::Scope;
use crate::graph::{NodeId, Output};

/// Defines one optimizer method. The method returns the variable's reference for a reference variable, and the update
/// node for a resource variable.
macro_rules! method {
    (dense $method:ident $op:literal $config:ident) => {
        #[doc = concat!("Applies one step of [`", stringify!($config), "`].")]
        /// Returns the reference to the variable.
        pub fn $method(&self, variable: Output, step: &$config, grad: Output) -> Output {
            step.call(self, $op, variable, grad, None).into()
        }
    };
    (sparse $method:ident $op:literal $config:ident) => {
        #[doc = concat!("Applies one step of [`", stringify!($config), "`] to the rows at `indices`.")]
        /// Returns the reference to the variable.
        pub fn $method(&self, variable: Output, step: &$config, grad: Output, indices: Output) -> Output {
            step.call(self, $op, variable, grad, Some(indices)).into()
        }
    };
    (resource_dense $method:ident $op:literal $config:ident) => {
        #[doc = concat!("Applies one step of [`", stringify!($config), "`].")]
        /// The variable and its slots are given by their resource handles.
        pub fn $method(&self, handle: Output, step: &$config, grad: Output) -> NodeId {
            step.call(self, $op, handle, grad, None)
        }
    };
    (resource_sparse $method:ident $op:literal $config:ident) => {
        #[doc = concat!("Applies one step of [`", stringify!($config), "`] to the rows at `indices`.")]
        /// The variable and its slots are given by their resource handles.
        pub fn $method(&self, handle: Output, step: &$config, grad: Output, indices: Output) -> NodeId {
            step.call(self, $op, handle, grad, Some(indices))
        }
    };
}

/// Defines optimizer structs. The fields of a struct are the op's inputs before the gradient, the inputs after the
/// gradient, and the boolean attributes, in this order.
macro_rules! optimizers {
    ($(
        $(#[$doc:meta])*
        $name:ident [$($before:ident)*] [$($after:ident)*] ($($flag:ident)*)
        { $($form:ident $method:ident = $op:literal;)* }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name { $(pub $before: Output,)* $(pub $after: Output,)* $(pub $flag: bool,)* }

            impl $name {
                fn call(
                    &self, scope: &Scope, op: &str, variable: Output, grad: Output, indices: Option<Output>,
                ) -> NodeId {
                    let mut call = scope.op(op).input(variable)$(.input(self.$before))*.input(grad);
                    if let Some(indices) = indices {
                        call = call.input(indices);
                    }
                    call$(.input(self.$after))*$(.attr(stringify!($flag), self.$flag))*.node()
                }
            }

            $(impl Scope { method!($form $method $op $name); })*
        )*
    };
}

impl Scope {
    /// Sets `var -= lr * grad` and returns the reference to the variable.
    pub fn apply_gradient_descent(&self, variable: Output, lr: Output, grad: Output) -> Output {
        self.op("ApplyGradientDescent").input(variable).input(lr).input(grad).output()
    }

    /// Sets `var -= lr * grad` for the variable behind a handle.
    pub fn resource_apply_gradient_descent(&self, handle: Output, lr: Output, grad: Output) -> NodeId {
        self.op("ResourceApplyGradientDescent").input(handle).input(lr).input(grad).node()
    }
}

optimizers! {
    /// Momentum: `accum = momentum * accum + grad; var -= lr * accum`, or with Nesterov's look-ahead.
    Momentum [accum lr] [momentum] (use_nesterov) {
        dense apply_momentum = "ApplyMomentum";
        sparse sparse_apply_momentum = "SparseApplyMomentum";
        resource_dense resource_apply_momentum = "ResourceApplyMomentum";
        resource_sparse resource_sparse_apply_momentum = "ResourceSparseApplyMomentum";
    }
    /// Keras momentum: `accum = momentum * accum - lr * grad; var += accum`, or with Nesterov's look-ahead.
    KerasMomentum [accum lr] [momentum] (use_nesterov) {
        resource_dense resource_apply_keras_momentum = "ResourceApplyKerasMomentum";
        resource_sparse resource_sparse_apply_keras_momentum = "ResourceSparseApplyKerasMomentum";
    }
    /// Adam: moving averages of the gradient and of its square, corrected for their bias towards zero.
    Adam [m v beta1_power beta2_power lr beta1 beta2 epsilon] [] (use_nesterov) {
        dense apply_adam = "ApplyAdam";
        resource_dense resource_apply_adam = "ResourceApplyAdam";
    }
    /// AMSGrad: Adam with the largest second moment so far as its divisor.
    AdamWithAmsgrad [m v vhat beta1_power beta2_power lr beta1 beta2 epsilon] [] () {
        resource_dense resource_apply_adam_with_amsgrad = "ResourceApplyAdamWithAmsgrad";
    }
    /// AdaMax: Adam with the infinity norm instead of the second moment.
    AdaMax [m v beta1_power lr beta1 beta2 epsilon] [] () {
        dense apply_ada_max = "ApplyAdaMax";
        resource_dense resource_apply_ada_max = "ResourceApplyAdaMax";
    }
    /// Adagrad: `accum += grad²; var -= lr * grad / √accum`.
    Adagrad [accum lr] [] (update_slots) {
        dense apply_adagrad = "ApplyAdagrad";
        sparse sparse_apply_adagrad = "SparseApplyAdagrad";
        resource_dense resource_apply_adagrad = "ResourceApplyAdagrad";
        resource_sparse resource_sparse_apply_adagrad = "ResourceSparseApplyAdagrad";
    }
    /// Adagrad with an epsilon: `accum += grad²; var -= lr * grad / (√accum + epsilon)`.
    AdagradV2 [accum lr epsilon] [] (update_slots) {
        dense apply_adagrad_v2 = "ApplyAdagradV2";
        sparse sparse_apply_adagrad_v2 = "SparseApplyAdagradV2";
        resource_dense resource_apply_adagrad_v2 = "ResourceApplyAdagradV2";
        resource_sparse resource_sparse_apply_adagrad_v2 = "ResourceSparseApplyAdagradV2";
    }
    /// Adagrad with dual averaging.
    AdagradDa [gradient_accumulator gradient_squared_accumulator] [lr l1 l2 global_step] () {
        dense apply_adagrad_da = "ApplyAdagradDA";
        sparse sparse_apply_adagrad_da = "SparseApplyAdagradDA";
        resource_dense resource_apply_adagrad_da = "ResourceApplyAdagradDA";
        resource_sparse resource_sparse_apply_adagrad_da = "ResourceSparseApplyAdagradDA";
    }
    /// RMSProp: the gradient divided by the root of a moving average of its square.
    RmsProp [ms mom lr rho momentum epsilon] [] () {
        dense apply_rms_prop = "ApplyRMSProp";
        sparse sparse_apply_rms_prop = "SparseApplyRMSProp";
        resource_dense resource_apply_rms_prop = "ResourceApplyRMSProp";
        resource_sparse resource_sparse_apply_rms_prop = "ResourceSparseApplyRMSProp";
    }
    /// Centered RMSProp: RMSProp with the variance of the gradient.
    CenteredRmsProp [mg ms mom lr rho momentum epsilon] [] () {
        dense apply_centered_rms_prop = "ApplyCenteredRMSProp";
        sparse sparse_apply_centered_rms_prop = "SparseApplyCenteredRMSProp";
        resource_dense resource_apply_centered_rms_prop = "ResourceApplyCenteredRMSProp";
        resource_sparse resource_sparse_apply_centered_rms_prop = "ResourceSparseApplyCenteredRMSProp";
    }
    /// Follow the regularized leader (McMahan et al., 2013).
    Ftrl [accum linear] [lr l1 l2 lr_power] (multiply_linear_by_lr) {
        dense apply_ftrl = "ApplyFtrl";
        sparse sparse_apply_ftrl = "SparseApplyFtrl";
        resource_dense resource_apply_ftrl = "ResourceApplyFtrl";
        resource_sparse resource_sparse_apply_ftrl = "ResourceSparseApplyFtrl";
    }
    /// Follow the regularized leader with an additional penalty on the current value of the variable (shrinkage).
    FtrlV2 [accum linear] [lr l1 l2 l2_shrinkage lr_power] (multiply_linear_by_lr) {
        dense apply_ftrl_v2 = "ApplyFtrlV2";
        sparse sparse_apply_ftrl_v2 = "SparseApplyFtrlV2";
        resource_dense resource_apply_ftrl_v2 = "ResourceApplyFtrlV2";
        resource_sparse resource_sparse_apply_ftrl_v2 = "ResourceSparseApplyFtrlV2";
    }
    /// Adadelta: steps in proportion to a moving average of past steps.
    Adadelta [accum accum_update lr rho epsilon] [] () {
        dense apply_adadelta = "ApplyAdadelta";
        sparse sparse_apply_adadelta = "SparseApplyAdadelta";
        resource_dense resource_apply_adadelta = "ResourceApplyAdadelta";
        resource_sparse resource_sparse_apply_adadelta = "ResourceSparseApplyAdadelta";
    }
    /// Gradient descent with a proximal step for the penalties `l1` and `l2`.
    ProximalGradientDescent [alpha l1 l2] [] () {
        dense apply_proximal_gradient_descent = "ApplyProximalGradientDescent";
        sparse sparse_apply_proximal_gradient_descent = "SparseApplyProximalGradientDescent";
        resource_dense resource_apply_proximal_gradient_descent = "ResourceApplyProximalGradientDescent";
        resource_sparse resource_sparse_apply_proximal_gradient_descent = "ResourceSparseApplyProximalGradientDescent";
    }
    /// Adagrad with a proximal step for the penalties `l1` and `l2`.
    ProximalAdagrad [accum lr l1 l2] [] () {
        dense apply_proximal_adagrad = "ApplyProximalAdagrad";
        sparse sparse_apply_proximal_adagrad = "SparseApplyProximalAdagrad";
        resource_dense resource_apply_proximal_adagrad = "ResourceApplyProximalAdagrad";
        resource_sparse resource_sparse_apply_proximal_adagrad = "ResourceSparseApplyProximalAdagrad";
    }
    /// AddSign: steps are larger where gradient and momentum agree in sign.
    AddSign [m lr alpha sign_decay beta] [] () {
        dense apply_add_sign = "ApplyAddSign";
        resource_dense resource_apply_add_sign = "ResourceApplyAddSign";
    }
    /// PowerSign: steps are scaled by a power that depends on whether gradient and momentum agree in sign.
    PowerSign [m lr logbase sign_decay beta] [] () {
        dense apply_power_sign = "ApplyPowerSign";
        resource_dense resource_apply_power_sign = "ResourceApplyPowerSign";
    }
}
