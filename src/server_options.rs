//! What a server is told by a `tf.ConfigProto`, as `tf.train.Server(config=…)` takes one: some of it is the server's own,
//! the rest is for sessions that say nothing else.

use base64::prelude::{BASE64_STANDARD, Engine};
use executor::gpus::{GpuOptions, Visible};
use prost::Message;
use proto::pb;
use std::str::FromStr;

/// A `tf.ConfigProto`, taken apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerOptions {
    pub cpu_devices: Option<u32>,
    pub threads: Option<usize>,
    pub visible_gpus: Option<Visible>,
    pub gpu_memory_fraction: Option<f64>,
    /// It had device filters, which have no effect, as with TensorFlow's servers.
    pub ignores_filters: bool,
    /// Of sessions.
    pub sessions: pb::ConfigProto,
}

impl FromStr for ServerOptions {
    type Err = String;

    /// Reads a serialized `tf.ConfigProto` in base64.
    fn from_str(text: &str) -> Result<ServerOptions, String> {
        let bytes = BASE64_STANDARD.decode(text).map_err(|e| format!("this is not base64: {e}"))?;
        let config = pb::ConfigProto::decode(bytes.as_slice());
        ServerOptions::of(config.map_err(|e| format!("this is no tf.ConfigProto: {e}"))?)
    }
}

impl ServerOptions {
    /// Takes from the options what is the server's.
    fn of(mut config: pb::ConfigProto) -> Result<ServerOptions, String> {
        let mut own = ServerOptions::default();
        if let Some(count) = config.device_count.remove("CPU") {
            own.cpu_devices = Some(count.try_into().map_err(|_| format!("device_count of CPU is {count}"))?);
        }
        if config.device_count.get("GPU") == Some(&0) {
            config.device_count.remove("GPU");
            own.visible_gpus = Some(Visible::These(Vec::new()));
        }
        if config.intra_op_parallelism_threads > 0 {
            own.threads = usize::try_from(std::mem::take(&mut config.intra_op_parallelism_threads)).ok();
        }
        if let Some(gpus) = &mut config.gpu_options {
            let list = std::mem::take(&mut gpus.visible_device_list);
            if own.visible_gpus.is_none() && !list.is_empty() {
                own.visible_gpus = Some(list.parse()?);
            }
            let fraction = std::mem::take(&mut gpus.per_process_gpu_memory_fraction);
            own.gpu_memory_fraction = (fraction > 0.0).then_some(fraction);
            // It grows unless a flag says otherwise: no more is asked for by this.
            gpus.allow_growth = false;
        }
        // A server's own are not for sessions; what sessions may not see, they say themselves.
        own.ignores_filters = !std::mem::take(&mut config.device_filters).is_empty();
        own.sessions = config;
        Ok(own)
    }

    /// These options of GPUs, where flags leave them open.
    pub fn gpus(&self, mut flags: GpuOptions) -> GpuOptions {
        if let (Visible::All, Some(visible)) = (&flags.visible, &self.visible_gpus) {
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
    fn what_is_the_servers_is_taken_and_the_rest_is_for_sessions() -> Result<(), String> {
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
        assert_eq!(visible, Visible::These(Vec::new()));
        assert!(options.ignores_filters);
        let rest = pb::ConfigProto { allow_soft_placement: true, ..Default::default() };
        assert_eq!(options.sessions, rest);
        Ok(())
    }

    #[test]
    fn flags_go_before_options_of_gpus() -> Result<(), String> {
        let gpus = pb::GpuOptions {
            visible_device_list: "2,0".into(),
            per_process_gpu_memory_fraction: 0.5,
            allow_growth: true,
            ..Default::default()
        };
        let options = ServerOptions::of(pb::ConfigProto { gpu_options: Some(gpus), ..Default::default() })?;
        // Nothing is left to be told of as without effect.
        assert_eq!(options.sessions.gpu_options, Some(pb::GpuOptions::default()));
        let open = options.gpus(GpuOptions::default());
        assert_eq!(
            (open.visible, open.memory_fraction, open.allow_growth),
            (Visible::These(vec![2, 0]), 0.5, true)
        );
        let told =
            GpuOptions { visible: Visible::These(vec![1]), memory_fraction: 0.25, ..Default::default() };
        let told = options.gpus(told);
        assert_eq!((told.visible, told.memory_fraction), (Visible::These(vec![1]), 0.25));
        Ok(())
    }

    #[test]
    fn what_is_no_config_is_refused() {
        let refused = |text: &str| text.parse::<ServerOptions>().err().unwrap_or_default();
        assert!(refused("%").contains("base64"));
        assert!(refused("/w==").contains("ConfigProto"));
        let negative =
            pb::ConfigProto { device_count: [("CPU".to_owned(), -1)].into(), ..Default::default() };
        assert!(refused(&BASE64_STANDARD.encode(negative.encode_to_vec())).contains("CPU"));
    }
}
