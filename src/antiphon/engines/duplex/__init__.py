"""Full duplex for engines that take turns."""
