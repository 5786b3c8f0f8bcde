//! The error for tensors with elements that are not finite.

use device::Error;

/// The kinds of non-finite values that occur in a tensor.
#[derive(Default, Debug)]
pub struct NonFiniteKinds {
    /// Set if the tensor contains NaN.
    pub nan: bool,
    /// Set if the tensor contains an infinity of either sign.
    pub infinite: bool,
    /// Set if the tensor contains negative infinity.
    pub negative: bool,
    /// Set if the tensor contains positive infinity.
    pub positive: bool,
}

impl NonFiniteKinds {
    /// Returns the error that names the kinds of values that occur; if `signed`, positive and negative infinities are
    /// named separately.
    pub fn error(&self, message: &str, signed: bool) -> Error {
        let kinds = match &(if signed { self.signed() } else { self.unsigned() })[..] {
            [a, b, c] => format!("{a}, {b}, and {c}"),
            some => some.join(" and "),
        };
        Error::invalid(format!("{message} : Tensor had {kinds} values"))
    }

    fn unsigned(&self) -> Vec<&'static str> {
        [(self.infinite, "Inf"), (self.nan, "NaN")].into_iter().filter(|f| f.0).map(|f| f.1).collect()
    }

    fn signed(&self) -> Vec<&'static str> {
        let all = [(self.negative, "-Inf"), (self.positive, "+Inf"), (self.nan, "NaN")];
        all.into_iter().filter(|f| f.0).map(|f| f.1).collect()
    }
}
