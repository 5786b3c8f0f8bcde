//! Windows of pooling ops.

use device::Result;
use device::kernel::KernelContext;
use graph::ops::pool::Pool;

/// The source of a kernel's window sizes and strides.
#[derive(Clone, Copy, Debug)]
pub enum Windows {
    Attrs(Pool),
    /// The window sizes are the input with this index, and the strides the next input.
    Inputs(usize),
}

impl Windows {
    /// Returns the pooling with the window sizes and strides that the attributes or this step's inputs give.
    pub fn of(&self, ctx: &KernelContext<'_>) -> Result<Pool> {
        let first = match self {
            Windows::Attrs(pool) => return Ok(*pool),
            Windows::Inputs(first) => *first,
        };
        let vector = |i: usize, what: &str| -> Result<Vec<i64>> {
            let sizes = ctx.input(i)?;
            if sizes.num_elements() != 4 {
                device::invalid!("Sliding window {what} field must specify 4 dimensions");
            }
            Ok(sizes.to_i64s()?)
        };
        Ok(Pool::with(ctx.node(), &vector(first, "ksize")?, &vector(first + 1, "stride")?)?)
    }
}

/// The names of the inputs that hold window sizes and strides.
pub const WINDOWS: &[&str] = &["ksize", "strides"];
