//! The graph rewrites that a session's options allow, among the rewrites that both the master and the workers
//! make.

use crate::pb;
use pb::optimizer_options::Level;
use pb::rewriter_config::Toggle;

/// A rewrite of a graph before it runs, named after its switch in `RewriterConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    ConstantFolding,
    CommonSubexpressions,
    Pruning,
    Arithmetic,
    /// Simplification of shape arithmetic.
    Shapes,
    /// Removal of control edges, and of ops whose results are not used.
    Dependencies,
    /// Fusion of several ops into one node.
    Fusion,
    /// Assignment of collectives to buckets, which are exchanged as one.
    Buckets,
}

impl Rewrite {
    /// Returns the names of the rewrite in `RewriterConfig.optimizers`.
    fn names(self) -> &'static [&'static str] {
        match self {
            Rewrite::ConstantFolding => &["constfold", "constant_folding"],
            Rewrite::CommonSubexpressions => &["common_subgraph_elimination"],
            Rewrite::Pruning => &["pruning"],
            Rewrite::Arithmetic => &["arithmetic", "arithmetic_optimization"],
            Rewrite::Shapes => &["shape", "shape_optimization"],
            Rewrite::Dependencies => &["dependency", "dependency_optimization"],
            Rewrite::Fusion => &["remap", "remapping"],
            Rewrite::Buckets => &["scoped_allocator", "scoped_allocator_optimization"],
        }
    }

    fn is_switched_off(self, config: &pb::RewriterConfig) -> bool {
        let toggle = match self {
            Rewrite::ConstantFolding => config.constant_folding,
            Rewrite::CommonSubexpressions => config.common_subgraph_elimination,
            Rewrite::Arithmetic => config.arithmetic_optimization,
            Rewrite::Shapes => config.shape_optimization,
            Rewrite::Dependencies => config.dependency_optimization,
            Rewrite::Fusion => config.remapping,
            // TensorFlow's optimizer of this name joins collectives too.
            Rewrite::Buckets => config.scoped_allocator_optimization,
            // Pruning has its own switch, which the list of optimizers does not override.
            Rewrite::Pruning => return false,
        };
        toggle == Toggle::Off as i32
    }
}

/// The options of a session that select graph rewrites.
#[derive(Clone, Debug)]
pub struct Rewrites {
    config: pb::RewriterConfig,
    are_off: bool,
}

impl Rewrites {
    /// Reads the options of a session.
    pub fn of(config: &pb::ConfigProto) -> Rewrites {
        let options = config.graph_options.clone().unwrap_or_default();
        let config = options.rewrite_options.unwrap_or_default();
        let level = options.optimizer_options.unwrap_or_default().opt_level;
        let are_off = config.disable_meta_optimizer || level == Level::L0 as i32;
        Rewrites { config, are_off }
    }

    /// Returns whether the options allow a rewrite: if the options list optimizers, only the listed ones,
    /// otherwise all that are not switched off.
    pub fn allow(&self, rewrite: Rewrite) -> bool {
        if self.are_off || (rewrite == Rewrite::Pruning && self.config.disable_model_pruning) {
            return false;
        }
        let listed = &self.config.optimizers;
        match listed.is_empty() {
            true => !rewrite.is_switched_off(&self.config),
            false => listed.iter().any(|listed| rewrite.names().contains(&listed.as_str())),
        }
    }

    /// Returns whether a step fails if one of its rewrites fails.
    pub fn fail_on_errors(&self) -> bool {
        self.config.fail_on_optimizer_errors
    }

    /// Returns the minimum number of nodes of graphs that are rewritten, if the options give one.
    pub fn least_nodes(&self) -> Option<usize> {
        match self.config.min_graph_nodes {
            0 => None,
            set => Some(usize::try_from(set).unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Rewrite; 8] = [
        Rewrite::ConstantFolding,
        Rewrite::CommonSubexpressions,
        Rewrite::Pruning,
        Rewrite::Arithmetic,
        Rewrite::Shapes,
        Rewrite::Dependencies,
        Rewrite::Fusion,
        Rewrite::Buckets,
    ];

    fn allowed(change: impl FnOnce(&mut pb::RewriterConfig, &mut pb::OptimizerOptions)) -> Vec<Rewrite> {
        let (mut rewriter, mut optimizer) = (pb::RewriterConfig::default(), pb::OptimizerOptions::default());
        change(&mut rewriter, &mut optimizer);
        let graph_options = Some(pb::GraphOptions {
            rewrite_options: Some(rewriter),
            optimizer_options: Some(optimizer),
            ..Default::default()
        });
        let rewrites = Rewrites::of(&pb::ConfigProto { graph_options, ..Default::default() });
        ALL.into_iter().filter(|rewrite| rewrites.allow(*rewrite)).collect()
    }

    #[test]
    fn the_options_select_the_rewrites() {
        assert_eq!(Rewrites::of(&pb::ConfigProto::default()).least_nodes(), None);
        assert_eq!(allowed(|_, _| {}), ALL);
        assert_eq!(allowed(|rewriter, _| rewriter.disable_meta_optimizer = true), []);
        assert_eq!(allowed(|_, optimizer| optimizer.opt_level = Level::L0 as i32), []);
        let unfused = allowed(|rewriter, _| rewriter.remapping = Toggle::Off as i32);
        assert_eq!(unfused, [&ALL[..6], &ALL[7..]].concat());
        let apart = allowed(|rewriter, _| rewriter.scoped_allocator_optimization = Toggle::Off as i32);
        assert_eq!(apart, ALL[..7]);
        let untied = allowed(|rewriter, _| {
            rewriter.arithmetic_optimization = Toggle::Off as i32;
            rewriter.shape_optimization = Toggle::Off as i32;
        });
        assert_eq!(untied, [&ALL[..3], &ALL[5..]].concat());
        let tied = allowed(|rewriter, _| rewriter.dependency_optimization = Toggle::Off as i32);
        assert_eq!(tied, [&ALL[..5], &ALL[6..]].concat());
        let listed = allowed(|rewriter, _| {
            rewriter.optimizers = ["dependency", "shape_optimization", "arithmetic"].map(String::from).into();
        });
        assert_eq!(listed, ALL[3..6]);
        assert_eq!(allowed(|rewriter, _| rewriter.constant_folding = Toggle::Off as i32), ALL[1..]);
        assert_eq!(allowed(|rewriter, _| rewriter.optimizers.push("remap".into())), [Rewrite::Fusion]);
        let pruned = allowed(|rewriter, _| {
            rewriter.optimizers.push("pruning".into());
            rewriter.disable_model_pruning = true;
        });
        assert_eq!(pruned, []);
    }
}
