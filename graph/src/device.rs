//! Device names: full names, and specifications with wildcards as users write them.

use crate::error::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// A device specification in which each part is optional: `/job:ps/replica:0/task:1/device:GPU:0`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceSpec {
    pub job: Option<Arc<str>>,
    pub replica: Option<u32>,
    pub task: Option<u32>,
    pub device_type: Option<Arc<str>>,
    pub id: Option<u32>,
}

impl DeviceSpec {
    /// Parses a specification. The parts may be in any order and `*` matches any value. The old forms `/cpu:0` and
    /// `/gpu:0` (in any case) mean `/device:CPU:0` and `/device:GPU:0`.
    ///
    /// # Errors
    /// `InvalidArgument` `Malformed device specification …`.
    pub fn parse(text: &str) -> Result<DeviceSpec> {
        let malformed = || Error::MalformedDevice { spec: text.to_owned(), node: None };
        let mut spec = DeviceSpec::default();
        if text.is_empty() {
            return Ok(spec);
        }
        for part in text.strip_prefix('/').ok_or_else(malformed)?.split('/') {
            let (key, value) = part.split_once(':').unwrap_or((part, ""));
            match key {
                "job" => spec.job = name(value).ok_or_else(malformed)?,
                "replica" => spec.replica = number(value).ok_or_else(malformed)?,
                "task" => spec.task = number(value).ok_or_else(malformed)?,
                "device" => {
                    let (kind, id) = value.split_once(':').unwrap_or((value, "*"));
                    spec.device_type = match kind {
                        "*" => None,
                        kind if is_identifier(kind) => Some(canonical_type(kind)),
                        _ => return Err(malformed()),
                    };
                    spec.id = number(id).ok_or_else(malformed)?;
                }
                kind if kind.eq_ignore_ascii_case("cpu") || kind.eq_ignore_ascii_case("gpu") => {
                    spec.device_type = Some(kind.to_ascii_uppercase().into());
                    spec.id = number(if value.is_empty() { "*" } else { value }).ok_or_else(malformed)?;
                }
                _ => return Err(malformed()),
            }
        }
        Ok(spec)
    }

    /// Returns whether a device satisfies the specification.
    pub fn matches(&self, device: &DeviceName) -> bool {
        fn fits<T: PartialEq + ?Sized, U: AsRef<T>>(part: &Option<U>, value: &T) -> bool {
            part.as_ref().is_none_or(|p| p.as_ref() == value)
        }
        fits(&self.job, &*device.job)
            && self.replica.is_none_or(|r| r == device.replica)
            && self.task.is_none_or(|t| t == device.task)
            && fits(&self.device_type, &*device.device_type)
            && self.id.is_none_or(|i| i == device.id)
    }

    /// Returns `self` with its unset parts filled from `other`.
    pub fn or(&self, other: &DeviceSpec) -> DeviceSpec {
        DeviceSpec {
            job: self.job.clone().or_else(|| other.job.clone()),
            replica: self.replica.or(other.replica),
            task: self.task.or(other.task),
            device_type: self.device_type.clone().or_else(|| other.device_type.clone()),
            id: self.id.or(other.id),
        }
    }

    /// Returns whether a device could satisfy both specifications.
    pub fn is_compatible(&self, other: &DeviceSpec) -> bool {
        fn agree<T: PartialEq>(a: &Option<T>, b: &Option<T>) -> bool {
            a.is_none() || b.is_none() || a == b
        }
        agree(&self.job, &other.job)
            && agree(&self.replica, &other.replica)
            && agree(&self.task, &other.task)
            && agree(&self.device_type, &other.device_type)
            && agree(&self.id, &other.id)
    }

    /// Returns whether no part is set.
    pub fn is_empty(&self) -> bool {
        *self == DeviceSpec::default()
    }

    /// Returns the full device name, if every part is set.
    pub fn to_name(&self) -> Option<DeviceName> {
        Some(DeviceName {
            job: self.job.clone()?,
            replica: self.replica?,
            task: self.task?,
            device_type: self.device_type.clone()?,
            id: self.id?,
        })
    }
}

/// Returns the upper-case spelling of CPU and GPU types.
fn canonical_type(kind: &str) -> Arc<str> {
    match kind {
        "cpu" => "CPU".into(),
        "gpu" => "GPU".into(),
        other => other.into(),
    }
}

fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Parses a job name: `Some(None)` for a wildcard, `None` for an invalid name.
fn name(text: &str) -> Option<Option<Arc<str>>> {
    match text {
        "*" => Some(None),
        text if is_identifier(text) => Some(Some(text.into())),
        _ => None,
    }
}

/// Parses a replica, task or device number: `Some(None)` for a wildcard, `None` for an invalid number.
fn number(text: &str) -> Option<Option<u32>> {
    if text == "*" {
        return Some(None);
    }
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse::<u32>().ok().filter(|&n| n <= i32::MAX as u32).map(Some)
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(job) = &self.job {
            write!(f, "/job:{job}")?;
        }
        if let Some(replica) = self.replica {
            write!(f, "/replica:{replica}")?;
        }
        if let Some(task) = self.task {
            write!(f, "/task:{task}")?;
        }
        match (&self.device_type, self.id) {
            (Some(kind), Some(id)) => write!(f, "/device:{kind}:{id}"),
            (Some(kind), None) => write!(f, "/device:{kind}:*"),
            (None, Some(id)) => write!(f, "/device:*:{id}"),
            (None, None) => Ok(()),
        }
    }
}

/// The full name of one device: `/job:worker/replica:0/task:1/device:CPU:0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceName {
    pub job: Arc<str>,
    pub replica: u32,
    pub task: u32,
    pub device_type: Arc<str>,
    pub id: u32,
}

impl DeviceName {
    /// Returns the name of a device of the task.
    pub fn new(task: &TaskName, device_type: &str, id: u32) -> DeviceName {
        DeviceName {
            job: task.job.clone(),
            replica: task.replica,
            task: task.task,
            device_type: device_type.into(),
            id,
        }
    }

    /// Parses a full device name.
    ///
    /// # Errors
    /// `InvalidArgument` if a part is missing.
    pub fn parse(text: &str) -> Result<DeviceName> {
        DeviceSpec::parse(text)?
            .to_name()
            .ok_or_else(|| Error::MalformedDevice { spec: text.to_owned(), node: None })
    }

    /// Returns the name of the device's task.
    pub fn task_name(&self) -> TaskName {
        TaskName { job: self.job.clone(), replica: self.replica, task: self.task }
    }

    /// Returns the specification that only this device satisfies.
    pub fn to_spec(&self) -> DeviceSpec {
        DeviceSpec {
            job: Some(self.job.clone()),
            replica: Some(self.replica),
            task: Some(self.task),
            device_type: Some(self.device_type.clone()),
            id: Some(self.id),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "/job:{}/replica:{}/task:{}/device:{}:{}",
            self.job, self.replica, self.task, self.device_type, self.id
        )
    }
}

/// The description of a device that its task reports to the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceAttributes {
    pub name: DeviceName,
    /// The device's memory in bytes.
    pub memory_limit: u64,
    /// A random non-zero number that is new at each start of the process, so that a restarted device can be told from
    /// the device before the restart.
    pub incarnation: u64,
    pub physical_description: String,
}

/// The name of one process of a cluster: `/job:worker/replica:0/task:1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskName {
    pub job: Arc<str>,
    pub replica: u32,
    pub task: u32,
}

impl TaskName {
    /// Returns the name of a task of replica 0.
    pub fn new(job: &str, task: u32) -> TaskName {
        TaskName { job: job.into(), replica: 0, task }
    }

    /// Parses a task name; a missing replica means 0.
    ///
    /// # Errors
    /// `InvalidArgument` `Malformed device specification …` if the job or the task is missing, or a device is given.
    pub fn parse(text: &str) -> Result<TaskName> {
        match DeviceSpec::parse(text)? {
            DeviceSpec { job: Some(job), replica, task: Some(task), device_type: None, id: None } => {
                Ok(TaskName { job, replica: replica.unwrap_or(0), task })
            }
            _ => Err(Error::MalformedDevice { spec: text.to_owned(), node: None }),
        }
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/job:{}/replica:{}/task:{}", self.job, self.replica, self.task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> Option<String> {
        DeviceSpec::parse(text).ok().map(|s| s.to_string())
    }

    #[test]
    fn specifications_print_in_canonical_form() {
        for (text, expected) in [
            ("", ""),
            ("/job:ps", "/job:ps"),
            ("/cpu:0", "/device:CPU:0"),
            ("/GPU:*", "/device:GPU:*"),
            ("/device:GPU:1", "/device:GPU:1"),
            ("/device:CPU:*", "/device:CPU:*"),
            ("/job:*/task:3", "/task:3"),
            ("/job:worker/task:1/device:CPU:0", "/job:worker/task:1/device:CPU:0"),
            ("/job:a/replica:0/task:0/cpu:2", "/job:a/replica:0/task:0/device:CPU:2"),
            ("/device:XPU", "/device:XPU:*"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["/job:!!", "job:ps", "/job:", "/task:-1", "/task:x", "/nonsense:0", "/device:", "/"] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }

    #[test]
    fn merging_takes_open_parts_from_the_other() -> Result<()> {
        let a = DeviceSpec::parse("/job:ps/device:GPU:*")?;
        let b = DeviceSpec::parse("/job:worker/task:1/device:CPU:0")?;
        assert_eq!(a.or(&b).to_string(), "/job:ps/task:1/device:GPU:0");
        assert!(!a.is_compatible(&b));
        assert!(b.matches(&DeviceName::parse("/job:worker/replica:0/task:1/device:CPU:0")?));
        assert!(DeviceName::parse("/job:worker").is_err());
        Ok(())
    }
}
