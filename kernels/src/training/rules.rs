//! The update rules of the optimizers: each computes the new value of one element of the variable and its slots from
//! the gradient. All ops of an optimizer share the rule: dense and sparse, for reference and resource variables.
//!
//! A rule is made from the op's scalars, in the op's order, and its flag. The state of an element is `[variable,
//! slots...]`, in the order of the op's inputs.

use crate::numeric::scalar::Analytic;
use device::Result;
use num_traits::{Float, Num};

/// A real or complex number type, for rules that compare no numbers.
pub(super) trait Field: Analytic + Num {}

impl<T: Analytic + Num> Field for T {}

/// Makes the rule of gradient descent, which subtracts the gradient times the learning rate.
pub(super) fn gradient_descent<W: Field>(s: &[W], _: bool) -> Result<impl Fn([W; 1], W) -> [W; 1] + use<W>> {
    let alpha = s[0];
    Ok(move |[var]: [W; 1], g: W| [var - alpha * g])
}

/// Makes the rule of momentum, optionally Nesterov's.
pub(super) fn momentum<W: Field>(s: &[W], nesterov: bool) -> Result<impl Fn([W; 2], W) -> [W; 2] + use<W>> {
    let (lr, momentum) = (s[0], s[1]);
    Ok(move |[var, accum]: [W; 2], g: W| {
        let accum = accum * momentum + g;
        let step = if nesterov { g * lr + accum * momentum * lr } else { accum * lr };
        [var - step, accum]
    })
}

/// Makes the rule of momentum as Keras defines it, optionally Nesterov's.
pub(super) fn keras_momentum<W: Field>(
    s: &[W],
    nesterov: bool,
) -> Result<impl Fn([W; 2], W) -> [W; 2] + use<W>> {
    let (lr, momentum) = (s[0], s[1]);
    Ok(move |[var, accum]: [W; 2], g: W| {
        let accum = accum * momentum - g * lr;
        let step = if nesterov { accum * momentum - g * lr } else { accum };
        [var + step, accum]
    })
}

/// Makes the rule of Adam (Kingma and Ba, 2014), optionally with Nesterov's momentum (Dozat, 2016).
pub(super) fn adam<W: Field>(s: &[W], nesterov: bool) -> Result<impl Fn([W; 3], W) -> [W; 3] + use<W>> {
    let (lr, beta1, beta2, epsilon) = (s[2], s[3], s[4], s[5]);
    let one = W::one();
    let alpha = lr * (one - s[1]).sqrt() / (one - s[0]);
    Ok(move |[var, m, v]: [W; 3], g: W| {
        let m = m + (g - m) * (one - beta1);
        let v = v + (g * g - v) * (one - beta2);
        let ahead = if nesterov { g * (one - beta1) + beta1 * m } else { m };
        [var - ahead * alpha / (v.sqrt() + epsilon), m, v]
    })
}

/// Makes the rule of Adam with AMSGrad (Reddi, Kale and Kumar, 2018).
pub(super) fn adam_with_amsgrad<W: Float>(s: &[W], _: bool) -> Result<impl Fn([W; 4], W) -> [W; 4] + use<W>> {
    let (lr, beta1, beta2, epsilon) = (s[2], s[3], s[4], s[5]);
    let one = W::one();
    let alpha = lr * (one - s[1]).sqrt() / (one - s[0]);
    Ok(move |[var, m, v, vhat]: [W; 4], g: W| {
        let m = m + (g - m) * (one - beta1);
        let v = v + (g * g - v) * (one - beta2);
        let vhat = if vhat < v { v } else { vhat };
        [var - m * alpha / (vhat.sqrt() + epsilon), m, v, vhat]
    })
}

/// Makes the rule of AdaMax (Kingma and Ba, 2014, section 7.1).
pub(super) fn ada_max<W: Float>(s: &[W], _: bool) -> Result<impl Fn([W; 3], W) -> [W; 3] + use<W>> {
    let (beta1_power, lr, beta1, beta2, epsilon) = (s[0], s[1], s[2], s[3], s[4]);
    let one = W::one();
    let alpha = lr / (one - beta1_power);
    Ok(move |[var, m, v]: [W; 3], g: W| {
        let m = m + (g - m) * (one - beta1);
        let decayed = beta2 * v;
        let v = if decayed < g.abs() { g.abs() } else { decayed };
        [var - alpha * (m / (v + epsilon)), m, v]
    })
}

/// Makes the rule of Adagrad (Duchi, Hazan and Singer, 2011).
pub(super) fn adagrad<W: Field>(
    s: &[W],
    update_slots: bool,
) -> Result<impl Fn([W; 2], W) -> [W; 2] + use<W>> {
    let lr = s[0];
    Ok(move |[var, accum]: [W; 2], g: W| {
        let accum = if update_slots { accum + g * g } else { accum };
        [var - g * lr / accum.sqrt(), accum]
    })
}

/// Makes the rule of Adagrad with an epsilon that is added to the square root of the accumulator.
pub(super) fn adagrad_v2<W: Field>(
    s: &[W],
    update_slots: bool,
) -> Result<impl Fn([W; 2], W) -> [W; 2] + use<W>> {
    let (lr, epsilon) = (s[0], s[1]);
    Ok(move |[var, accum]: [W; 2], g: W| {
        let accum = if update_slots { accum + g * g } else { accum };
        [var - g * lr / (accum.sqrt() + epsilon), accum]
    })
}

/// Makes the rule of Adagrad with dual averaging, with L1 and L2 penalties (Duchi, Hazan and Singer, 2011).
pub(super) fn adagrad_da<W: Float>(s: &[W], _: bool) -> Result<impl Fn([W; 3], W) -> [W; 3] + use<W>> {
    let (lr, l1, l2, step) = (s[0], s[1], s[2], s[3]);
    Ok(move |[_, sum, squares]: [W; 3], g: W| {
        let (sum, squares) = (sum + g, squares + g * g);
        let shrunk = if l1 > W::zero() { shrink(sum, l1 * step) } else { sum };
        [-lr * shrunk / (l2 * step * lr + squares.sqrt()), sum, squares]
    })
}

/// Makes the rule of RMSProp (Tieleman and Hinton, 2012).
pub(super) fn rms_prop<W: Field>(s: &[W], _: bool) -> Result<impl Fn([W; 3], W) -> [W; 3] + use<W>> {
    let (lr, rho, momentum, epsilon) = (s[0], s[1], s[2], s[3]);
    Ok(move |[var, ms, mom]: [W; 3], g: W| {
        let ms = ms + (g * g - ms) * (W::one() - rho);
        let mom = mom * momentum + g * lr / (ms + epsilon).sqrt();
        [var - mom, ms, mom]
    })
}

/// Makes the rule of centered RMSProp (Graves, 2013).
pub(super) fn centered_rms_prop<W: Field>(s: &[W], _: bool) -> Result<impl Fn([W; 4], W) -> [W; 4] + use<W>> {
    let (lr, rho, momentum, epsilon) = (s[0], s[1], s[2], s[3]);
    Ok(move |[var, mg, ms, mom]: [W; 4], g: W| {
        let ms = ms + (g * g - ms) * (W::one() - rho);
        let mg = mg + (g - mg) * (W::one() - rho);
        let mom = mom * momentum + g * lr / (ms - mg * mg + epsilon).sqrt();
        [var - mom, mg, ms, mom]
    })
}

/// Makes the rule of FTRL (McMahan and others, 2013).
pub(super) fn ftrl<W: Float>(s: &[W], multiply_by_lr: bool) -> Result<impl Fn([W; 3], W) -> [W; 3] + use<W>> {
    Ok(Ftrl::new(s, false, multiply_by_lr).rule(false))
}

pub(super) fn ftrl_v2<W: Float>(
    s: &[W],
    multiply_by_lr: bool,
) -> Result<impl Fn([W; 3], W) -> [W; 3] + use<W>> {
    Ok(Ftrl::new(s, true, multiply_by_lr).rule(false))
}

pub(super) fn sparse_ftrl<W: Float>(
    s: &[W],
    multiply_by_lr: bool,
) -> Result<impl Fn([W; 3], W) -> [W; 3] + use<W>> {
    Ok(Ftrl::new(s, false, multiply_by_lr).checked()?.rule(true))
}

pub(super) fn sparse_ftrl_v2<W: Float>(
    s: &[W],
    multiply_by_lr: bool,
) -> Result<impl Fn([W; 3], W) -> [W; 3] + use<W>> {
    Ok(Ftrl::new(s, true, multiply_by_lr).checked()?.rule(true))
}

/// The settings of FTRL; only the sparse ops check them.
struct Ftrl<W> {
    lr: W,
    l1: W,
    l2: W,
    /// The L2 shrinkage; `None` for ops without that input, because a product with 0 would turn an infinite variable
    /// into NaN.
    shrinkage: Option<W>,
    lr_power: W,
    multiply_by_lr: bool,
}

impl<W: Float> Ftrl<W> {
    fn new(s: &[W], has_shrinkage: bool, multiply_by_lr: bool) -> Ftrl<W> {
        let (shrinkage, lr_power) = if has_shrinkage { (Some(s[3]), s[4]) } else { (None, s[3]) };
        Ftrl { lr: s[0], l1: s[1], l2: s[2], shrinkage, lr_power, multiply_by_lr }
    }

    fn checked(self) -> Result<Ftrl<W>> {
        if self.lr != W::zero() || !self.multiply_by_lr {
            expect_positive(self.lr)?;
        }
        expect_penalties(&[
            ("l1", self.l1),
            ("l2", self.l2),
            ("l2 shrinkage", self.shrinkage.unwrap_or(W::zero())),
        ])?;
        if self.lr_power.is_nan() || self.lr_power > W::zero() {
            device::invalid!("lr_power is not a non-positive scalar: []");
        }
        Ok(self)
    }

    /// Returns the update rule. A linear slot that is NaN does not exceed the L1 bound, so it sets the variable to
    /// zero, or to NaN if `keeps_nan`.
    fn rule(self, keeps_nan: bool) -> impl Fn([W; 3], W) -> [W; 3] + use<W> {
        let Ftrl { lr, l1, l2, shrinkage, lr_power, multiply_by_lr } = self;
        let (zero, two) = (W::zero(), W::one() + W::one());
        let is_root = lr_power == -W::one() / two;
        let power = move |accum: W| if is_root { accum.sqrt() } else { accum.powf(-lr_power) };
        // With `multiply_by_lr`, the linear slot is scaled by the learning rate.
        let (scale, per) = if multiply_by_lr { (lr, W::one()) } else { (W::one(), lr) };
        move |[var, accum, linear]: [W; 3], g: W| {
            let shrunk = shrinkage.map_or(g, |s| g + two * s * var);
            let grown = accum + g * g;
            let root = power(grown);
            let linear = linear + shrunk * scale - (root - power(accum)) / per * var;
            let bound = l1 * scale;
            let var = if linear.abs() > bound || (keeps_nan && linear.is_nan()) {
                (sign(linear) * bound - linear) / (root / per + two * l2 * scale)
            } else {
                zero
            };
            [var, grown, linear]
        }
    }
}

/// Makes the rule of Adadelta (Zeiler, 2012).
pub(super) fn adadelta<W: Field>(s: &[W], _: bool) -> Result<impl Fn([W; 3], W) -> [W; 3] + use<W>> {
    let (lr, rho, epsilon) = (s[0], s[1], s[2]);
    Ok(move |[var, accum, accum_update]: [W; 3], g: W| {
        let accum = accum * rho + g * g * (W::one() - rho);
        let update = (accum_update + epsilon).sqrt() / (accum + epsilon).sqrt() * g;
        let accum_update = accum_update * rho + update * update * (W::one() - rho);
        [var - update * lr, accum, accum_update]
    })
}

pub(super) fn proximal_gradient_descent<W: Float>(
    s: &[W],
    _: bool,
) -> Result<impl Fn([W; 1], W) -> [W; 1] + use<W>> {
    let (alpha, l1, l2) = (s[0], s[1], s[2]);
    Ok(move |[var]: [W; 1], g: W| [proximal(var - alpha * g, alpha, l1, l2)])
}

pub(super) fn proximal_adagrad<W: Float>(s: &[W], _: bool) -> Result<impl Fn([W; 2], W) -> [W; 2] + use<W>> {
    let (lr, l1, l2) = (s[0], s[1], s[2]);
    expect_positive(lr)?;
    expect_penalties(&[("l1", l1), ("l2", l2)])?;
    Ok(move |[var, accum]: [W; 2], g: W| {
        let accum = accum + g * g;
        let lr = lr / accum.sqrt();
        [proximal(var - g * lr, lr, l1, l2), accum]
    })
}

/// Makes the rule of AddSign (Bello and others, 2017).
pub(super) fn add_sign<W: Float>(s: &[W], _: bool) -> Result<impl Fn([W; 2], W) -> [W; 2] + use<W>> {
    let (lr, alpha, sign_decay, beta) = (s[0], s[1], s[2], s[3]);
    Ok(move |[var, m]: [W; 2], g: W| {
        let m = m * beta + g * (W::one() - beta);
        [var - lr * (alpha + sign_decay * (sign(g) * sign(m))) * g, m]
    })
}

/// Makes the rule of PowerSign (Bello and others, 2017).
pub(super) fn power_sign<W: Float>(s: &[W], _: bool) -> Result<impl Fn([W; 2], W) -> [W; 2] + use<W>> {
    let (lr, logbase, sign_decay, beta) = (s[0], s[1], s[2], s[3]);
    Ok(move |[var, m]: [W; 2], g: W| {
        let m = m * beta + g * (W::one() - beta);
        [var - lr * (logbase * sign_decay * (sign(g) * sign(m))).exp() * g, m]
    })
}

/// Refuses a learning rate that is not positive or is NaN.
fn expect_positive<W: Float>(lr: W) -> Result<()> {
    if lr > W::zero() {
        return Ok(());
    }
    device::invalid!("lr is not a positive scalar: []")
}

/// Refuses penalties that are negative or NaN.
fn expect_penalties<W: Float>(penalties: &[(&str, W)]) -> Result<()> {
    for (name, value) in penalties {
        if value.is_nan() || *value < W::zero() {
            device::invalid!("{name} regularization strength is not a non-negative scalar: []");
        }
    }
    Ok(())
}

/// Returns the sign of `x` as -1, 0 or 1; NaN for NaN.
fn sign<W: Float>(x: W) -> W {
    if x > W::zero() {
        W::one()
    } else if x < W::zero() {
        -W::one()
    } else {
        x.abs()
    }
}

/// Returns `x` moved towards zero by `by`, but not past zero; NaN if either is NaN, or if both are infinite.
fn shrink<W: Float>(x: W, by: W) -> W {
    let rest = x.abs() - by;
    sign(x) * if rest < W::zero() { W::zero() } else { rest }
}

/// Returns the number that minimises the sum of the squared distance to `x` and the L1 and L2 penalties (Duchi and
/// Singer, 2009).
fn proximal<W: Float>(x: W, lr: W, l1: W, l2: W) -> W {
    let x = if l1 > W::zero() { shrink(x, lr * l1) } else { x };
    x / (W::one() + l2 * lr)
}
