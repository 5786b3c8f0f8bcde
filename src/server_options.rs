//! The options of a server, given as a `tf.ConfigProto` like the `config` of `tf.train.Server`. Some options configure
//! the server itself; all other options are defaults for its sessions.

use base64::prelude::{BASE64_STANDARD, Engine};
use device::gpu_options::{GpuOptions, GpuSelection};
use prost::Message;
use proto::pb;
use std::str::FromStr;

/// The options of a server, read from a `tf.ConfigProto`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerOptions {
    pub cpu_devices: Option<u32>,
    pub threads: Option<usize>,
    pub visible_gpus: Option<GpuSelection>,
    pub gpu_memory_fraction: Option<f64>,
    /// True if the `tf.ConfigProto` has device filters, which have no effect on a server, as in TensorFlow.
    pub has_ignored_filters: bool,
    /// Defaults of the options of the server's sessions.
    pub session_config: pb::ConfigProto,
}

impl FromStr for ServerOptions {
    type Err = String;

    /// Parses a serialized `tf.ConfigProto` in base64.
    fn from_str(text: &str) -> Result<ServerOptions, String> {
        let bytes = BASE64_STANDARD.decode(text).map_err(|e| format!("this is not base64: {e}"))?;
        let config = pb::ConfigProto::decode(bytes.as_slice());
        ServerOptions::split(config.map_err(|e| format!("this is no tf.ConfigProto: {e}"))?)
    }
}

impl ServerOptions {
    /// Splits a `tf.ConfigProto` into options of the server and defaults for its sessions.
    fn split(mut config: pb::ConfigProto) -> Result<ServerOptions, String> {
        let mut server = ServerOptions::default();
        if let Some(count) = config.device_count.remove("CPU") {
            server.cpu_devices =
                Some(count.try_into().map_err(|_| format!("device_count of CPU is {count}"))?);
        }
        if config.device_count.get("GPU") == Some(&0) {
            config.device_count.remove("GPU");
            server.visible_gpus = Some(GpuSelection::Listed(Vec::new()));
        }
        if config.intra_op_parallelism_threads > 0 {
            server.threads = usize::try_from(std::mem::take(&mut config.intra_op_parallelism_threads)).ok();
        }
        if let Some(gpus) = &mut config.gpu_options {
            let list = std::mem::take(&mut gpus.visible_device_list);
            if server.visible_gpus.is_none() && !list.is_empty() {
                server.visible_gpus = Some(list.parse()?);
            }
            let fraction = std::mem::take(&mut gpus.per_process_gpu_memory_fraction);
            server.gpu_memory_fraction = (fraction > 0.0).then_some(fraction);
            // GPU memory grows on demand unless a flag disables this, so `allow_growth` requests nothing more.
            gpus.allow_growth = false;
        }
        // A server's device filters do not apply to its sessions, which have their own filters.
        server.has_ignored_filters = !std::mem::take(&mut config.device_filters).is_empty();
        server.session_config = config;
        Ok(server)
    }

    /// Returns the GPU options of the command-line flags; options that no flag sets are taken from the
    /// `tf.ConfigProto`.
    pub fn gpus(&self, mut flags: GpuOptions) -> GpuOptions {
        if let (GpuSelection::All, Some(visible)) = (&flags.visible, &self.visible_gpus) {
            flags.visible = visible.clone();
        }
        if flags.memory_fraction == 0.0 {
            flags.memory_fraction = self.gpu_memory_fraction.unwrap_or_default();
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_options_are_separated_from_session_options() -> Result<(), String> {
        let config = pb::ConfigProto {
            device_count: [("CPU".to_owned(), 3), ("GPU".to_owned(), 0)].into(),
            intra_op_parallelism_threads: 2,
            allow_soft_placement: true,
            device_filters: vec!["/job:ps".to_owned()],
            ..Default::default()
        };
        let options: ServerOptions = BASE64_STANDARD.encode(config.encode_to_vec()).parse()?;
        assert_eq!((options.cpu_devices, options.threads), (Some(3), Some(2)));
        let visible = options.gpus(GpuOptions::default()).visible;
        assert_eq!(visible, GpuSelection::Listed(Vec::new()));
        assert!(options.has_ignored_filters);
        let rest = pb::ConfigProto { allow_soft_placement: true, ..Default::default() };
        assert_eq!(options.session_config, rest);
        Ok(())
    }

    #[test]
    fn flags_take_precedence_over_gpu_options() -> Result<(), String> {
        let gpus = pb::GpuOptions {
            visible_device_list: "2,0".into(),
            per_process_gpu_memory_fraction: 0.5,
            allow_growth: true,
            ..Default::default()
        };
        let options =
            ServerOptions::split(pb::ConfigProto { gpu_options: Some(gpus), ..Default::default() })?;
        // All GPU options have been removed from the session defaults, where they would be reported as ineffective.
        assert_eq!(options.session_config.gpu_options, Some(pb::GpuOptions::default()));
        let open = options.gpus(GpuOptions::default());
        assert_eq!(
            (open.visible, open.memory_fraction, open.allow_growth),
            (GpuSelection::Listed(vec![2, 0]), 0.5, true)
        );
        let flags = GpuOptions {
            visible: GpuSelection::Listed(vec![1]),
            memory_fraction: 0.25,
            ..Default::default()
        };
        let flags = options.gpus(flags);
        assert_eq!((flags.visible, flags.memory_fraction), (GpuSelection::Listed(vec![1]), 0.25));
        Ok(())
    }

    #[test]
    fn malformed_configs_are_refused() {
        let refused = |text: &str| text.parse::<ServerOptions>().err().unwrap_or_default();
        assert!(refused("%").contains("base64"));
        assert!(refused("/w==").contains("ConfigProto"));
        let negative =
            pb::ConfigProto { device_count: [("CPU".to_owned(), -1)].into(), ..Default::default() };
        assert!(refused(&BASE64_STANDARD.encode(negative.encode_to_vec())).contains("CPU"));
    }
}
