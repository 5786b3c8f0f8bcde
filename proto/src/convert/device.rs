//! Conversions of device attributes, which tasks send each other.

use crate::pb;
use graph::{DeviceAttributes, DeviceName, Error, Result};

/// Converts the attributes of a device to their message.
pub fn device_to_proto(device: &DeviceAttributes) -> pb::DeviceAttributes {
    pb::DeviceAttributes {
        name: device.name.to_string(),
        device_type: device.name.device_type.to_string(),
        memory_limit: i64::try_from(device.memory_limit).unwrap_or(i64::MAX),
        locality: Some(pb::DeviceLocality::default()),
        incarnation: device.incarnation,
        physical_device_desc: device.physical_description.clone(),
        xla_global_id: -1,
    }
}

/// Converts the message of a device's attributes.
///
/// # Errors
/// `InvalidArgument` if the name is not a full device name, or the type differs from that in the name.
pub fn device_from_proto(device: pb::DeviceAttributes) -> Result<DeviceAttributes> {
    let name = DeviceName::parse(&device.name)?;
    if !device.device_type.is_empty() && *device.device_type != *name.device_type {
        return Err(Error::invalid(format!(
            "device '{}' says that its type is '{}'",
            device.name, device.device_type
        )));
    }
    Ok(DeviceAttributes {
        name,
        // A limit that is negative or zero means that the device does not know its memory size.
        memory_limit: u64::try_from(device.memory_limit).unwrap_or(0),
        incarnation: device.incarnation,
        physical_description: device.physical_device_desc,
    })
}

/// Converts the attributes of devices to messages.
pub fn devices_to_proto(devices: &[DeviceAttributes]) -> Vec<pb::DeviceAttributes> {
    devices.iter().map(device_to_proto).collect()
}

/// Converts the messages of devices' attributes.
pub fn devices_from_proto(devices: Vec<pb::DeviceAttributes>) -> Result<Vec<DeviceAttributes>> {
    devices.into_iter().map(device_from_proto).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_round_trip_and_malformed_ones_are_refused() -> Result<()> {
        let device = DeviceAttributes {
            name: DeviceName::parse("/job:ps/replica:0/task:3/device:GPU:1")?,
            memory_limit: 1 << 40,
            incarnation: 0xfeed_face_cafe_beef,
            physical_description: "a card".into(),
        };
        let sent = device_to_proto(&device);
        let devices = [device];
        assert_eq!(devices_from_proto(devices_to_proto(&devices))?, devices);
        let partial = pb::DeviceAttributes { name: "/job:ps".into(), ..sent.clone() };
        assert!(device_from_proto(partial).is_err());
        assert!(device_from_proto(pb::DeviceAttributes { device_type: "CPU".into(), ..sent }).is_err());
        Ok(())
    }
}
