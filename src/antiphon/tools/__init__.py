"""The tools that the server runs: `base` is the contract, and each tool is one file or sub-room and one row of the toolbox."""
