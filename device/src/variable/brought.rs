//! What a variable in a device's own memory held at a moment, brought to the host while the variable changes on.

use crate::device::{Device, DeviceTensor};
use crate::error::{Error, Result};
use graph::{Code, DType, Shape, Tensor};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// Copies that are not there after so long are not waited for.
const PATIENCE: Duration = Duration::from_secs(300);

/// A value on its way to the host.
#[derive(Debug)]
pub struct Brought {
    /// The variable's name, for messages.
    variable: String,
    dtype: DType,
    shape: Shape,
    value: Mutex<Option<Result<Tensor>>>,
    came: Condvar,
}

impl Brought {
    /// Begins to bring a value of the device's. Whoever changes it there from now on comes after the copy.
    pub(super) fn start(device: &Device, variable: &str, value: DeviceTensor) -> Arc<Brought> {
        let brought = Arc::new(Brought {
            variable: variable.to_owned(),
            dtype: value.dtype,
            shape: value.shape.clone(),
            value: Mutex::default(),
            came: Condvar::new(),
        });
        let waits = brought.clone();
        device.processor().download(value, Box::new(move |tensor| waits.come(tensor)));
        brought
    }

    fn come(&self, value: Result<Tensor>) {
        *self.value.lock() = Some(value);
        self.came.notify_all();
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The value, as soon as it is there.
    ///
    /// # Errors
    /// The device's; `DeadlineExceeded` if the copy does not end.
    pub fn wait(&self) -> Result<Tensor> {
        let mut value = self.value.lock();
        self.came.wait_while_for(&mut value, |value| value.is_none(), PATIENCE);
        value.clone().unwrap_or_else(|| {
            let what =
                format!("the copy of {} from its device has not ended within {PATIENCE:?}", self.variable);
            Err(Error::new(Code::DeadlineExceeded, what))
        })
    }
}
