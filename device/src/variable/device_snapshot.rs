//! Snapshots of variables in device memory: copies to the host that proceed while the variable changes.

use crate::device::{Device, DeviceTensor};
use crate::error::{Error, Result};
use graph::{Code, DType, Shape, Tensor};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// The time after which a copy to the host that has not ended counts as failed.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A variable's value that is being copied to the host.
#[derive(Debug)]
pub struct DeviceSnapshot {
    /// The name of the variable, for messages.
    variable: String,
    dtype: DType,
    shape: Shape,
    value: Mutex<Option<Result<Tensor>>>,
    arrived: Condvar,
}

impl DeviceSnapshot {
    /// Starts to copy a value to the host. Work enqueued on the device from now on runs after the copy.
    pub(super) fn start(device: &Device, variable: &str, value: DeviceTensor) -> Arc<DeviceSnapshot> {
        let snapshot = Arc::new(DeviceSnapshot {
            variable: variable.to_owned(),
            dtype: value.dtype,
            shape: value.shape.clone(),
            value: Mutex::default(),
            arrived: Condvar::new(),
        });
        let pending = snapshot.clone();
        device.processor().download(value, Box::new(move |tensor| pending.complete(tensor)));
        snapshot
    }

    fn complete(&self, value: Result<Tensor>) {
        *self.value.lock() = Some(value);
        self.arrived.notify_all();
    }

    /// Returns the dtype of the copied value.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape of the copied value.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Waits for the copy and returns the value.
    ///
    /// # Errors
    /// Errors of the device; `DeadlineExceeded` if the copy does not end in time.
    pub fn wait(&self) -> Result<Tensor> {
        let mut value = self.value.lock();
        self.arrived.wait_while_for(&mut value, |value| value.is_none(), TIMEOUT);
        value.clone().unwrap_or_else(|| {
            let message =
                format!("the copy of {} from its device has not ended within {TIMEOUT:?}", self.variable);
            Err(Error::new(Code::DeadlineExceeded, message))
        })
    }
}
